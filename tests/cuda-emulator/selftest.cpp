// Tests the emulator by the driver API alone. Every test is a process of its own, since a failed launch stays.
#include <dlfcn.h>
#include <elf.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

extern "C" {
unsigned cuInit(unsigned);
unsigned cuDriverGetVersion(int *);
unsigned cuDevicePrimaryCtxRetain(void **, int);
unsigned cuDeviceGetAttribute(int *, int, int);
unsigned cuCtxSetCurrent(void *);
unsigned cuCtxSynchronize();
unsigned cuMemAlloc_v2(unsigned long long *, size_t);
unsigned cuMemFree_v2(unsigned long long);
unsigned cuMemHostAlloc(void **, size_t, unsigned);
unsigned cuMemGetInfo_v2(size_t *, size_t *);
unsigned cuMemcpyHtoD_v2(unsigned long long, const void *, size_t);
unsigned cuMemcpyDtoH_v2(void *, unsigned long long, size_t);
unsigned cuMemcpyDtoDAsync_v2(unsigned long long, unsigned long long, size_t, void *);
unsigned cuMemsetD32Async(unsigned long long, unsigned, size_t, void *);
unsigned cuDevicePrimaryCtxRelease_v2(int);
unsigned cuCtxGetId(void *, unsigned long long *);
unsigned cuModuleLoadData(void **, const void *);
unsigned cuModuleGetFunction(void **, void *, const char *);
unsigned cuModuleUnload(void *);
unsigned cuFuncSetAttribute(void *, int, int);
unsigned cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
unsigned cuStreamCreate(void **, unsigned);
unsigned cuStreamSynchronize(void *);
unsigned cuStreamBeginCapture_v2(void *, int);
unsigned cuStreamEndCapture(void *, void **);
unsigned cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
unsigned cuGraphGetNodes(void *, void **, size_t *);
unsigned cuGraphLaunch(void *, void *);
unsigned cuGetErrorName(unsigned, const char **);
}

namespace {

struct Params {
    unsigned long long x, y;
    unsigned n;
    int choice;
};

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            printf("  line %d: %s\n", __LINE__, #condition);                \
            fflush(stdout);                                                 \
            _exit(1);                                                       \
        }                                                                   \
    } while (0)
#define GIVES(call, code)                                                              \
    do {                                                                               \
        unsigned gave = (call);                                                        \
        if (gave != (code)) {                                                          \
            printf("  line %d: %s gave %u, not %u\n", __LINE__, #call, gave, unsigned(code)); \
            fflush(stdout);                                                            \
            _exit(1);                                                                  \
        }                                                                              \
    } while (0)

// A cubin as far as the emulator looks at one: a header, and the names of kernels.
std::vector<char> cubin(const std::string &names, unsigned sm = 90) {
    Elf64_Ehdr header = {};
    memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_ABIVERSION] = 8;
    header.e_machine = 190;
    header.e_flags = 0x06000004u | sm << 8;
    header.e_shoff = sizeof header + names.size();
    std::vector<char> image(sizeof header + names.size());
    memcpy(image.data(), &header, sizeof header);
    memcpy(image.data() + sizeof header, names.data(), names.size());
    return image;
}

std::string all_names() {
    std::string names(1, '\0');
    for (const char *name : {"sum", "reverse", "poison", "barriers", "lanes", "bounds", "mma", "copies", "half", "add", "fmaf",
                             "barrier_rate", "nowhere"})
        names += std::string("hotseam_selftest_") + name + '\0';
    return names;
}

void *module;

void begin() {
    void *context;
    GIVES(cuInit(0), 0);
    GIVES(cuDevicePrimaryCtxRetain(&context, 0), 0);
    GIVES(cuCtxSetCurrent(context), 0);
    std::vector<char> image = cubin(all_names());
    GIVES(cuModuleLoadData(&module, image.data()), 0);
}

void *function(const char *name) {
    void *f;
    GIVES(cuModuleGetFunction(&f, module, (std::string("hotseam_selftest_") + name).c_str()), 0);
    return f;
}

unsigned launch(const char *name, unsigned blocks, unsigned threads, Params params, unsigned shared = 0, void *stream = nullptr) {
    void *list[] = {&params};
    return cuLaunchKernel(function(name), blocks, 1, 1, threads, 1, 1, shared, stream, list, nullptr);
}

unsigned long long device(const std::vector<float> &values) {
    unsigned long long address;
    GIVES(cuMemAlloc_v2(&address, values.size() * 4), 0);
    GIVES(cuMemcpyHtoD_v2(address, values.data(), values.size() * 4), 0);
    return address;
}

std::vector<float> host(unsigned long long address, size_t n) {
    std::vector<float> values(n);
    GIVES(cuMemcpyDtoH_v2(values.data(), address, n * 4), 0);
    return values;
}

double seconds() {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

std::vector<float> counting(size_t n) {
    std::vector<float> values(n);
    for (size_t i = 0; i < n; ++i) values[i] = float(i);
    return values;
}

// ---- the tests -----------------------------------------------------------------------------------------------------------

void reduction() {
    begin();
    unsigned long long x = device(std::vector<float>(1000, 1.0f)), y = device({0, 0, 0, 0});
    GIVES(launch("sum", 4, 256, {x, y, 1000, 0}), 0);
    std::vector<float> sums = host(y, 4);
    CHECK(sums[0] == 256 && sums[1] == 256 && sums[2] == 256 && sums[3] == 232);
}

void lanes() {
    begin();
    unsigned long long y = device(std::vector<float>(32, 0.0f));
    GIVES(launch("lanes", 1, 32, {0, y, 0, 0}), 0);
    for (float right : host(y, 32)) CHECK(right == 1.0f);
    GIVES(launch("barriers", 1, 32, {0, y, 0, 5}), 0);
    std::vector<float> halves = host(y, 32);
    for (int i = 0; i < 32; ++i) CHECK(halves[i] == float(i & 16));
}

void reverse_with_barrier() {
    begin();
    unsigned long long x = device(counting(256)), y = device(counting(256));
    GIVES(launch("reverse", 1, 256, {x, y, 256, 0}, 1024), 0);
    std::vector<float> reversed = host(y, 256);
    for (int i = 0; i < 256; ++i) CHECK(reversed[i] == float(255 - i));
}

// Prints what the kernel without its barrier makes under the seed of this process.
void reverse_without_barrier() {
    begin();
    unsigned long long x = device(counting(256)), y = device(counting(256));
    GIVES(launch("reverse", 1, 256, {x, y, 256, 1}, 1024), 0);
    unsigned long long hash = 1469598103934665603ull, unwritten = 0;
    for (float v : host(y, 256)) {
        unwritten += isnan(v);
        hash = (hash ^ (isnan(v) ? 9999 : unsigned(v))) * 1099511628211ull;
    }
    CHECK(unwritten > 0);
    FILE *out = fopen(getenv("SELFTEST_HASH"), "a");
    fprintf(out, "%llx\n", hash);
    fclose(out);
}

void poison() {
    begin();
    unsigned long long y = device({0, 0, 0}), fresh;
    GIVES(launch("poison", 3, 1, {0, y, 0, 0}, 16), 0);
    for (float all : host(y, 3)) CHECK(all == 1.0f);
    GIVES(cuMemAlloc_v2(&fresh, 100), 0);
    unsigned bytes;
    GIVES(cuMemcpyDtoH_v2(&bytes, fresh, 4), 0);
    CHECK(bytes == 0xcdcdcdcdu);
    GIVES(cuMemAlloc_v2(&fresh, 300 << 20), 0);
    GIVES(cuMemcpyDtoH_v2(&bytes, fresh + (200 << 20), 4), 0);
    CHECK(bytes == 0xcdcdcdcdu);
}

void refused(int choice, unsigned code) {
    begin();
    unsigned long long y = device(std::vector<float>(64, 0.0f));
    void *again = function("barriers");
    GIVES(launch("barriers", 1, 64, {0, y, 0, choice}), code);
    GIVES(cuCtxSynchronize(), code);
    Params params = {0, y, 0, 5};
    void *list[] = {&params};
    GIVES(cuLaunchKernel(again, 1, 1, 1, 64, 1, 1, 0, nullptr, list, nullptr), code);
    const char *name;
    GIVES(cuGetErrorName(code, &name), 0);
    CHECK(strcmp(name, "CUDA_ERROR_LAUNCH_FAILED") == 0);
}

void ended_threads() {
    begin();
    unsigned long long y = device(std::vector<float>(64, 0.0f));
    GIVES(launch("barriers", 1, 64, {0, y, 0, 0}), 0);
    std::vector<float> counts = host(y, 64);
    CHECK(counts[0] == 20 && counts[39] == 20 && counts[40] == 0);
}

void bounds(int choice, unsigned code) {
    begin();
    unsigned long long y = device(std::vector<float>(256, 0.0f));
    GIVES(launch("bounds", 2, 256, {0, y, 256, choice}), code);
    if (code) GIVES(cuCtxSynchronize(), code);
}

void freed() {
    begin();
    unsigned long long y = device(std::vector<float>(256, 0.0f));
    GIVES(cuMemFree_v2(y), 0);
    GIVES(cuMemFree_v2(y), 1);
    GIVES(launch("bounds", 1, 256, {0, y, 256, 0}), 700);
}

// `half` of the two formats of `choice`: bits that `value` reads.
void mma_of(int choice, uint16_t (*half)(float)) {
    begin();
    std::vector<float> bits(192);
    auto *halves = reinterpret_cast<uint16_t *>(bits.data());
    auto value = [&](int i) { return float((i * 37) % 23 - 11) * 0.25f; };
    for (int i = 0; i < 384; ++i) halves[i] = half(value(i));
    unsigned long long x = device(bits), y = device(std::vector<float>(128, 0.0f));
    GIVES(launch("mma", 1, 32, {x, y, 0, choice}), 0);
    std::vector<float> d = host(y, 128);
    for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 8; ++n) {
            float sum = 1.0f;
            for (int k = 0; k < 16; ++k) sum += value(m * 16 + k) * value(256 + k * 8 + n);
            CHECK(d[m * 8 + n] == sum);
        }
}

uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

void mma() {
    mma_of(0, [](float f) { return uint16_t(bits_of(f) >> 16); });
    // Of zero or a normal number that has no more bits.
    mma_of(1, [](float f) {
        uint32_t sign = bits_of(f) >> 16 & 0x8000u, size = bits_of(f) & 0x7fffffffu;
        return uint16_t(sign | (size == 0 ? 0 : (size - (112u << 23)) >> 13));
    });
}

void copies() {
    begin();
    std::vector<float> x(128);
    for (int i = 0; i < 128; ++i) x[i] = float(i);
    unsigned long long y = device(std::vector<float>(32, 0.0f));
    GIVES(launch("copies", 1, 32, {device(x), y, 0, 0}), 0);
    for (float f : host(y, 32)) CHECK(f == 1.0f);
}

void half() {
    begin();
    // Ties go to even, subnormal numbers are exact to 2^-24, what is too large is infinite.
    const struct { float value; uint32_t bits; } known[] = {
        {0.0f, 0}, {-0.0f, 0x8000}, {1.0f, 0x3c00}, {-1.5f, 0xbe00}, {65504.0f, 0x7bff}, {65519.0f, 0x7bff}, {65520.0f, 0x7c00},
        {1e30f, 0x7c00}, {0x1p-14f, 0x0400}, {0x1p-24f, 1}, {0x1p-25f, 0}, {0x1.8p-24f, 2}, {-0x1.8p-15f, 0x8300},
        {1.0f + 0x1p-11f, 0x3c00}, {1.0f + 0x3p-11f, 0x3c02}, {0x1.ffep-15f, 0x0400}};
    std::vector<float> x(32, 1.0f);
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) x[i] = known[i].value;
    unsigned long long y = device(std::vector<float>(64, 0.0f));
    GIVES(launch("half", 1, 32, {device(x), y, 0, 0}), 0);
    std::vector<float> d = host(y, 64);
    for (size_t i = 0; i < sizeof known / sizeof *known; ++i) CHECK(bits_of(d[i]) == known[i].bits * 0x10001u);
    // e4m3: 2^-9 for the code 1, 2^-6 and an eighth more for 9, 1 for 56, 384 for 124.
    CHECK(bits_of(d[32]) == 0x18000000u && bits_of(d[32 + 2]) >> 16 == 0x2480u);
    CHECK((bits_of(d[32 + 14]) & 0xffffu) == 0x3c00u && (bits_of(d[32 + 31]) & 0x7fffu) == 0x5e00u);
}

void graph() {
    begin();
    void *stream, *graph, *exec;
    unsigned long long x = device(counting(100)), y = device(std::vector<float>(100, 5.0f));
    unsigned long long z = device(std::vector<float>(100, 0.0f));
    GIVES(cuStreamCreate(&stream, 1), 0);
    GIVES(cuStreamBeginCapture_v2(stream, 1), 0);
    GIVES(cuMemsetD32Async(y, 0, 100, stream), 0);
    GIVES(launch("add", 1, 128, {x, y, 100, 0}, 0, stream), 0);
    GIVES(launch("add", 1, 128, {x, y, 100, 0}, 0, stream), 0);
    GIVES(cuMemcpyDtoDAsync_v2(z, y, 400, stream), 0);
    GIVES(cuStreamEndCapture(stream, &graph), 0);
    CHECK(host(y, 100)[3] == 5.0f);
    size_t n = 0;
    GIVES(cuGraphGetNodes(graph, nullptr, &n), 0);
    CHECK(n == 4);
    GIVES(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
    for (int replay = 0; replay < 3; ++replay) GIVES(cuGraphLaunch(exec, stream), 0);
    CHECK(host(z, 100)[3] == 6.0f && host(y, 100)[99] == 198.0f);
    // What waits breaks a capture.
    GIVES(cuStreamBeginCapture_v2(stream, 1), 0);
    float value;
    GIVES(cuMemcpyDtoH_v2(&value, y, 4), 900);
    GIVES(cuStreamEndCapture(stream, &graph), 901);
    GIVES(cuStreamBeginCapture_v2(stream, 2), 0);
    unsigned long long during;
    GIVES(cuMemAlloc_v2(&during, 64), 0);
    GIVES(cuStreamSynchronize(stream), 900);
    GIVES(cuStreamEndCapture(stream, &graph), 901);
    GIVES(cuModuleUnload(module), 0);
    GIVES(cuGraphLaunch(exec, stream), 400);
}

void contexts() {
    begin();
    void *context;
    unsigned long long first, second;
    GIVES(cuCtxGetId(nullptr, &first), 0);
    GIVES(cuDevicePrimaryCtxRelease_v2(0), 0);
    GIVES(cuDevicePrimaryCtxRetain(&context, 0), 0);
    GIVES(cuCtxGetId(context, &second), 0);
    CHECK(second != first);
    GIVES(cuModuleUnload(module), 400);
}

void images() {
    begin();
    void *m, *f;
    std::vector<char> other = cubin(all_names(), 120), text(100, 'x');
    GIVES(cuModuleLoadData(&m, other.data()), 209);
    GIVES(cuModuleLoadData(&m, text.data()), 200);
    GIVES(cuModuleGetFunction(&f, module, "hotseam_selftest_absent"), 500);
    GIVES(cuModuleGetFunction(&f, module, "hotseam_selftest_nowhere"), 500);
    Params params = {};
    void *list[] = {&params};
    GIVES(cuLaunchKernel(function("fmaf"), 1, 1, 1, 257, 1, 1, 0, nullptr, list, nullptr), 701);
    GIVES(cuLaunchKernel(function("fmaf"), 1, 1, 1, 1025, 1, 1, 0, nullptr, list, nullptr), 1);
    GIVES(cuLaunchKernel(function("reverse"), 1, 1, 1, 32, 1, 1, 50000, nullptr, list, nullptr), 1);
    GIVES(cuFuncSetAttribute(function("reverse"), 8, 300000), 1);
}

void memory_limit() {
    begin();
    size_t free, total;
    unsigned long long a, b;
    GIVES(cuMemGetInfo_v2(&free, &total), 0);
    CHECK(total == 1000000 && free == 1000000);
    GIVES(cuMemAlloc_v2(&a, 900000), 0);
    GIVES(cuMemAlloc_v2(&b, 900000), 2);
    GIVES(cuMemFree_v2(a), 0);
    for (int i = 0; i < 300; ++i) {
        GIVES(cuMemAlloc_v2(&b, 900000), 0);
        GIVES(cuMemFree_v2(b), 0);
    }
}

// Host code that touches device memory dies; the same within a kernel and a copy does not.
void strict() {
    begin();
    unsigned long long x = device(counting(256)), y = device(std::vector<float>(256, 1.0f));
    GIVES(launch("add", 1, 256, {x, y, 256, 0}), 0);
    CHECK(host(y, 256)[7] == 8.0f);
    fflush(stdout);
    if (pid_t child = fork()) {
        int status;
        waitpid(child, &status, 0);
        CHECK(WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS));
    } else {
        _exit(int(*reinterpret_cast<volatile float *>(x)));
    }
    GIVES(launch("bounds", 2, 256, {0, y, 256, 1}), 700);
}

// Memory of the host is not the device's, unless it is pinned.
void host_pointer(bool pinned) {
    begin();
    void *own = malloc(1024);
    if (pinned) GIVES(cuMemHostAlloc(&own, 1024, 0), 0);
    GIVES(launch("bounds", 1, 256, {0, reinterpret_cast<uintptr_t>(own), 256, 0}), pinned ? 0u : 700u);
}

void fault(unsigned init, int version, int major, unsigned launched) {
    GIVES(cuInit(0), init);
    if (init) return;
    int got;
    GIVES(cuDriverGetVersion(&got), 0);
    CHECK(got == version);
    GIVES(cuDeviceGetAttribute(&got, 75, 0), 0);
    CHECK(got == major);
    if (major != 9) return;
    begin();
    unsigned long long y = device({0.0f});
    GIVES(launch("bounds", 1, 1, {0, y, 1, 0}), launched);
}

void stub(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library != nullptr);
    auto init = reinterpret_cast<unsigned (*)(unsigned)>(dlsym(library, "cuInit"));
    CHECK(init && init(0) == 34 && dlsym(library, "cuDriverGetVersion"));
    CHECK(!dlsym(library, "cuMemAlloc_v2"));
}

void rates() {
    begin();
    unsigned long long x = device({1.0f}), y = device(std::vector<float>(256, 0.0f));
    double start = seconds();
    GIVES(launch("fmaf", 1563, 256, {x, y, 0, 250}), 0);   // 1563 * 256 * 250 = 1.0e8
    double long_threads = seconds() - start;
    start = seconds();
    GIVES(launch("fmaf", 39063, 256, {x, y, 0, 10}), 0);   // the same in threads of 10
    double short_threads = seconds() - start;
    start = seconds();
    GIVES(launch("barrier_rate", 100, 256, {x, y, 0, 100}), 0);
    double barriers = seconds() - start;
    printf("  1.0e8 fmaf: %.0f million/s (%.2f s of CPU) in threads of 250, %.0f million/s in threads of 10; "
           "%.0f ns a thread and barrier\n",
           100 / long_threads, long_threads, 100 / short_threads, barriers / (100 * 100 * 256) * 1e9);
}

int failed, passed;

void test(const char *name, const std::function<void()> &body,
          const std::vector<std::pair<const char *, const char *>> &variables = {}) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (auto &[key, value] : variables) setenv(key, value, 1);
        body();
        fflush(stdout);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    printf("%-50s %s\n", name, good ? "passes" : "FAILS");
    if (!good && WIFSIGNALED(status)) printf("  killed by signal %d\n", WTERMSIG(status));
    (good ? passed : failed) += 1;
}

}   // namespace

int main(int, char **arguments) {
    test("a block's sum by shuffles and a barrier", reduction);
    test("warp collectives, whole and in halves", lanes);
    test("shared memory with a barrier", reverse_with_barrier);
    char hashes[] = "/tmp/hotseam-selftest-XXXXXX";
    close(mkstemp(hashes));
    for (const char *seed : {"1", "2", "2"})
        test((std::string("without the barrier, seed ") + seed).c_str(), reverse_without_barrier,
             {{"SELFTEST_HASH", hashes}, {"HOTSEAM_EMULATOR_SEED", seed}});
    test("seeds differ, and a seed is repeated", [&] {
        unsigned long long a = 0, b = 0, c = 0;
        FILE *in = fopen(hashes, "r");
        CHECK(in && fscanf(in, "%llx %llx %llx", &a, &b, &c) == 3);
        CHECK(a != b && b == c);
    });
    unlink(hashes);
    test("poison of shared and of device memory", poison);
    test("threads that ended do not hold a barrier", ended_threads);
    test("two barriers, each reached by some", [] { refused(1, 719); });
    test("a barrier against a warp's collective", [] { refused(2, 719); });
    test("a shuffle with a lane that has ended", [] { refused(3, 719); });
    test("a shuffle from a lane outside the mask", [] { refused(4, 719); });
    test("within bounds", [] { bounds(0, 0); });
    test("one past the end", [] { bounds(1, 700); });
    test("no device memory", [] { bounds(2, 700); });
    test("more stack than a thread has", [] { bounds(3, 719); });
    test("freed memory", freed);
    test("mma against a loop", mma);
    test("copies that go on", copies);
    test("numbers of 16 bits", half);
    test("capture and replay of a graph", graph);
    test("contexts, and modules that end with them", contexts);
    test("images, functions and limits of launches", images);
    test("memory limit", memory_limit, {{"HOTSEAM_EMULATOR_MEMORY", "1000000"}});
    test("strict: host code dies on device memory", strict, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    test("strict: freed memory", freed, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    test("strict: a kernel on memory of the host", [] { host_pointer(false); }, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    test("strict: a kernel on pinned memory", [] { host_pointer(true); }, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    test("strict: a misaligned access", [] { bounds(4, 716); }, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    for (void (*body)() : {reduction, lanes, reverse_with_barrier, poison, mma, graph})
        test("strict: right kernels", body, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    test("fault: stub", [] { fault(34, 0, 0, 0); }, {{"HOTSEAM_EMULATOR_FAULT", "stub"}});
    test("fault: no-device", [] { fault(100, 0, 0, 0); }, {{"HOTSEAM_EMULATOR_FAULT", "no-device"}});
    test("fault: old-driver", [] { fault(0, 12020, 9, 0); }, {{"HOTSEAM_EMULATOR_FAULT", "old-driver"}});
    test("fault: other-sm", [] { fault(0, 13000, 8, 0); }, {{"HOTSEAM_EMULATOR_FAULT", "other-sm"}});
    test("fault: launch", [] { fault(0, 13000, 9, 719); }, {{"HOTSEAM_EMULATOR_FAULT", "launch"}});
    test("a stub library", [&] { stub(arguments[1]); });
    test("rates", rates);
    test("rates, strict", rates, {{"HOTSEAM_EMULATOR_STRICT", "1"}});
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
