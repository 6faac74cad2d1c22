// What the parts of the emulator say to each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulated.hpp"

// Codes of the driver API that the emulator gives.
enum CUresult : unsigned {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_STUB_LIBRARY = 34,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701,
    CUDA_ERROR_MISALIGNED_ADDRESS = 716,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
    CUDA_ERROR_UNKNOWN = 999,
};

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace hotseam_emulated {

// One line on stderr, begun by "hotseam emulator: ".
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

// ---- settings, read once from the environment --------------------------------------------------------------------------

enum class Fault { None, Stub, NoDevice, OldDriver, OtherSm, Launch };

struct Settings {
    uint64_t seed = 1;
    uint64_t memory = 8ull << 30;
    bool strict = false;
    Fault fault = Fault::None;
    int sm = 90;   // of the device; `other-sm` makes it 80
};
const Settings &settings();

// ---- device memory ---------------------------------------------------------------------------------------------------------

namespace memory {

CUresult allocate(size_t bytes, uint64_t *address);
CUresult release(uint64_t address);
void info(size_t *free, size_t *total);
bool holds(uint64_t address, size_t bytes);      // all of it in one allocation
extern uint64_t arena_begin, arena_bytes;
inline bool in_arena(uint64_t address) { return address - arena_begin < arena_bytes; }
bool allocation_at(uint64_t address, uint64_t *base, size_t *bytes);
std::string nearest(uint64_t address);           // in words

// While one lives, device memory can be read and written.
struct Open {
    Open();
    ~Open();
    Open(const Open &) = delete;
};

}   // namespace memory

// ---- kernels ---------------------------------------------------------------------------------------------------------------

const std::vector<Kernel> &kernels();

struct Launch {
    const Kernel *kernel = nullptr;
    dim3 grid, block;
    unsigned shared = 0;                     // bytes of dynamic shared memory
    std::vector<unsigned char> params;
};

// Runs a whole grid. What fails is said on stderr.
CUresult run_grid(const Launch &launch);

// Where the thread that runs has its stack, and how much dynamic shared memory there is.
extern uintptr_t stack_begin, stack_bytes;
extern size_t dynamic_shared_bytes;
bool is_pinned(uint64_t address);
// Ends the launch for an access of the thread that runs.
[[noreturn]] void refuse_access(uint64_t address, size_t bytes, CUresult why);

constexpr unsigned MOST_THREADS = 1024, MOST_SHARED = 232448;

// What one warp makes of a collective once all lanes of `mask` have come: `result[lane]` from `lanes`.
// Returns a lane that reads one outside the mask, or -1.
int collect(Op op, unsigned mask, const Lane lanes[32], uint64_t result[32]);
const char *op_name(Op op);

// ---- state of the driver -----------------------------------------------------------------------------------------------------

CUresult usable();                    // initialised, a context is current, and no launch has failed
CUresult launchable();                // the same, and launches are not made to fail
void unload_modules();                // the context has ended
CUresult stick(CUresult result);      // a failure of a launch stays
bool valid_stream(const void *stream);
CUresult idle_stream(const void *stream);   // valid, and not capturing

// Whether a call that may not happen during a capture is made during one; if so, it has invalidated the capture.
bool capture_forbids(bool synchronous);

struct Node {
    enum Type : int { KernelNode = 0, MemcpyNode = 1, MemsetNode = 2, HostNode = 3, EmptyNode = 5 };
    Type type = EmptyNode;
    Launch launch;
    const void *function = nullptr;          // handle of the kernel's function, which may be unloaded before a replay
    uint64_t to = 0, from = 0;               // addresses, of the host or the device
    size_t bytes = 0;                        // of a copy or a memset
    unsigned value = 0, width = 1;           // of a memset
    void (*host)(void *) = nullptr;
    void *host_data = nullptr;
};

// Does it now, or records it if `stream` captures.
CUresult enqueue(void *stream, Node node);
CUresult perform(const Node &node);
bool valid_function(const void *function);
CUresult node_of_launch(void *function, dim3 grid, dim3 block, unsigned shared, void **params, void **extra, Node *node);

}   // namespace hotseam_emulated
