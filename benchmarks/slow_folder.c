/* Laid over libc (LD_PRELOAD): each call that opens, looks at or lists something below a folder of SLOW_FOLDERS (a:b) takes
   SLOW_US microseconds longer, as on a busy file system that is shared. Reading what is open takes no longer. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void wait_for(const char *path) {
    const char *folders = getenv("SLOW_FOLDERS"), *slow = getenv("SLOW_US");
    char whole[8192];
    if (!folders || !slow || !path) return;
    if (path[0] != '/') {
        if (!getcwd(whole, 4096)) return;
        strcat(whole, "/");
        strncat(whole, path, 4000);
        path = whole;
    }
    for (const char *one = folders; *one;) {
        size_t length = strcspn(one, ":");
        if (length && !strncmp(path, one, length) && (path[length] == '/' || !path[length])) {
            usleep((useconds_t)atol(slow));
            return;
        }
        one += length + (one[length] == ':');
    }
}

#define OPENS(name)                                                                    \
    int name(const char *path, int flags, ...) {                                       \
        va_list more;                                                                  \
        va_start(more, flags);                                                         \
        mode_t mode = va_arg(more, mode_t);                                            \
        va_end(more);                                                                  \
        wait_for(path);                                                                \
        return NEXT(name)(path, flags, mode);                                          \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                 \
    int name(int folder, const char *path, int flags, ...) {                           \
        va_list more;                                                                  \
        va_start(more, flags);                                                         \
        mode_t mode = va_arg(more, mode_t);                                            \
        va_end(more);                                                                  \
        if (folder == AT_FDCWD || path[0] == '/') wait_for(path);                      \
        return NEXT(name)(folder, path, flags, mode);                                  \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

#define LOOKS(name, type)                                                              \
    int name(const char *path, struct type *found) {                                   \
        wait_for(path);                                                                \
        return NEXT(name)(path, found);                                                \
    }
LOOKS(stat, stat)
LOOKS(stat64, stat64)
LOOKS(lstat, stat)
LOOKS(lstat64, stat64)

#define LOOKS_AT(name, type)                                                           \
    int name(int folder, const char *path, struct type *found, int flags) {            \
        if (folder == AT_FDCWD || path[0] == '/') wait_for(path);                      \
        return NEXT(name)(folder, path, found, flags);                                 \
    }
LOOKS_AT(fstatat, stat)
LOOKS_AT(fstatat64, stat64)

FILE *fopen(const char *path, const char *mode) {
    wait_for(path);
    return NEXT(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    wait_for(path);
    return NEXT(fopen64)(path, mode);
}
DIR *opendir(const char *path) {
    wait_for(path);
    return NEXT(opendir)(path);
}
ssize_t readlink(const char *path, char *text, size_t size) {
    wait_for(path);
    return NEXT(readlink)(path, text, size);
}
int access(const char *path, int mode) {
    wait_for(path);
    return NEXT(access)(path, mode);
}
