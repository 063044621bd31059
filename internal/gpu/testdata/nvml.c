/* A libnvidia-ml.so of one driver with two cards, for tests of the real loading
 * path. Built with -DOLD it is a driver that lacks what came later. */
#include <string.h>

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;

static const unsigned long long GiB = 1ULL << 30;
static int index_of(void *device) { return (int)(long)device - 1; }

int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "580.95.05", n); return 0; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return i < 2 ? 0 : 2; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n)
{
    strncpy(s, index_of(d) ? "GPU-22222222-0000-0000-0000-000000000000" : "GPU-11111111-0000-0000-0000-000000000000", n);
    return 0;
}
int nvmlDeviceGetName(void *d, char *s, unsigned n) { strncpy(s, "NVIDIA A100-SXM4-80GB", n); return 0; }
int nvmlDeviceGetMemoryInfo(void *d, memory *m) { m->total = 80 * GiB; m->used = 3 * GiB; m->free = 77 * GiB; return 0; }
#ifndef OLD
int nvmlDeviceGetMemoryInfo_v2(void *d, memory2 *m)
{
    m->total = 80 * GiB; m->reserved = GiB / 2; m->used = 2 * GiB; m->free = m->total - m->reserved - m->used;
    return 0;
}
int nvmlDeviceGetEccMode(void *d, int *now, int *later) { *now = *later = 1; return 0; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *later) { *now = *later = 0; return 0; }
int nvmlDeviceGetUtilizationRates(void *d, utilization *u) { u->gpu = 7; u->memory = 1; return 0; }
/* Process 1 is always there; 4194305 is above the highest id that Linux gives. */
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *n, process *p)
{
    if (*n < 2) { *n = 2; return 7; }
    *n = 2;
    p[0].pid = 1; p[0].used = GiB;
    p[1].pid = 4194305; p[1].used = GiB / 2;
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *n, void *p) { return 3; } /* of the first version: superseded */
#endif
