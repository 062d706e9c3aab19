/* A stand-in for libnvidia-ml.so.1: NVML_GPUS GPUs (8), each busy for NVML_BUSY % (75) and at 300 W; a sample every 0.2 s.
   NVML_HANGS: a question for use never returns. NVML_LOST: GPU 0 has fallen off the bus. NVML_OLD: no samples, no counter,
   and memory with the driver's own 1 GB.
   NVML_SMS: % of SMs that are busy (40); GPUs before Hopper, which do not tell: 0. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { uint64_t total, free, used; } memory_t;
typedef struct { unsigned version; uint64_t total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned gpu, memory; } rates_t;
typedef struct { uint64_t time; union { double d; unsigned u; uint64_t l; } value; } sample_t;
typedef struct { void *device; uint64_t type, data; unsigned instance, compute; } event_t;
enum { OK = 0, NOT_SUPPORTED = 3, TIMEOUT = 10, LOST = 15 };

static unsigned number(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)atoi(text) : otherwise;
}
static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}
static int lost(void *device) {
    while (getenv("NVML_HANGS")) pause();
    return getenv("NVML_LOST") && device == (void *)1;
}

int nvmlInit_v2(void) { return OK; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "570.1") > 0 ? OK : 1; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("NVML_GPUS", 8); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(uintptr_t)(index + 1); return OK; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) {
    return snprintf(text, size, "GPU-%u0000000-0000", (unsigned)(uintptr_t)device - 1) > 0 ? OK : 1;
}
int nvmlDeviceGetName(void *device, char *text, unsigned size) { (void)device; strncpy(text, "NVIDIA H100 80GB HBM3", size); return OK; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) {
    if (lost(device)) return LOST;
    memory->total = 80ull << 30; memory->used = 21ull << 30; memory->free = 59ull << 30;
    return OK;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory) {
    if (lost(device)) return LOST;
    if (getenv("NVML_OLD")) return NOT_SUPPORTED;
    if (memory->version != (sizeof(memory_v2_t) | 2u << 24)) return 25; /* an argument of another version */
    memory->total = 80ull << 30; memory->reserved = 1ull << 30; memory->used = 20ull << 30; memory->free = 59ull << 30;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *device, rates_t *rates) {
    if (lost(device)) return LOST;
    rates->gpu = number("NVML_BUSY", 75); rates->memory = 10;
    return OK;
}
int nvmlDeviceGetSamples(void *device, int type, uint64_t since, int *kind, unsigned *count, sample_t *samples) {
    if (lost(device)) return LOST;
    if (getenv("NVML_OLD") || type != 1) return NOT_SUPPORTED;
    uint64_t now = now_us(), from = since && now - since < 16000000 ? since : now - 16000000;
    unsigned there = (unsigned)((now - from) / 200000), taken = 0;
    *kind = 1;
    if (!samples) { *count = there; return OK; }
    for (; taken < there && taken < *count; taken++) {
        samples[taken].time = from + (taken + 1ull) * 200000;
        samples[taken].value.u = number("NVML_BUSY", 75);
    }
    *count = taken;
    return OK;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 300000; return lost(device) ? LOST : OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    if (getenv("NVML_OLD")) return NOT_SUPPORTED;
    *millijoules = now_us() * 300 / 1000;
    return lost(device) ? LOST : OK;
}
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = type == 1 ? 1980 : 0; return lost(device) ? LOST : OK; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *degrees) { *degrees = sensor ? 0 : 61; return lost(device) ? LOST : OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) { *bits = 0x4; return lost(device) ? LOST : OK; }
int nvmlDeviceGetTotalEccErrors(void *device, int type, int since, unsigned long long *count) {
    *count = type == 1 && since == 0 ? 2 : 0;
    return lost(device) ? LOST : OK;
}
typedef struct { unsigned version, supported; } support_t;
typedef struct { unsigned id; int status; double value; char *names[3]; } metric_t;
typedef struct { unsigned version, count; void *before, *now; metric_t metrics[98]; } question_t;
int nvmlGpmQueryDeviceSupport(void *device, support_t *support) {
    support->supported = !getenv("NVML_OLD") && number("NVML_SMS", 40);
    return lost(device) ? LOST : support->version == 1 ? OK : 1;
}
int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, 8); return OK; }
int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *device, void *sample) { *(uint64_t *)sample = now_us(); return lost(device) ? LOST : OK; }
int nvmlGpmMetricsGet(question_t *question) {
    if (question->version != 1 || question->count != 1 || question->metrics[0].id != 2) return 2;
    question->metrics[0].status = *(uint64_t *)question->now - *(uint64_t *)question->before < 100000 ? 999 : OK;
    question->metrics[0].value = number("NVML_SMS", 40);
    return OK;
}
int nvmlEventSetCreate(void **events) { *events = (void *)7; return OK; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *events) { (void)device; return types == 8 && events ? OK : 1; }
int nvmlEventSetWait_v2(void *events, event_t *event, unsigned milliseconds) {
    static int told;
    (void)events; (void)milliseconds;
    if (told++ || !getenv("NVML_XID")) return TIMEOUT;
    event->device = (void *)1; event->type = 8; event->data = number("NVML_XID", 0);
    return OK;
}
