/* Laid over libc (LD_PRELOAD): each fsync takes SLOW_FSYNC seconds longer, the wall clock is CLOCK_SHIFT seconds ahead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int fsync(int file) {
    const char *slow = getenv("SLOW_FSYNC");
    if (slow) usleep((useconds_t)(atof(slow) * 1e6));
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    const char *shift = getenv("CLOCK_SHIFT");
    int done = ((int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
    if (shift && clock == CLOCK_REALTIME) now->tv_sec += atol(shift);
    return done;
}
