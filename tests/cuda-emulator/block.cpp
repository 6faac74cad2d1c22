// Runs grids: block after block, the threads of a block as fibers on the launching thread.
//
// A thread runs until it waits. The first fiber takes thread after thread, and another is made only when a thread waits
// with its stack in use; so blocks that never wait cost a loop. Which thread runs next is shuffled by the seed, warps among
// each other and lanes within their warp, so that a result that hangs on an order no barrier makes differs between seeds.
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>

#include "fiber.hpp"
#include "runtime.hpp"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace hotseam_emulated {

unsigned char *dynamic_shared;
size_t dynamic_shared_bytes;
unsigned lane_number;
uintptr_t stack_begin, stack_bytes;

namespace {

struct Thread {
    enum State : uint8_t { Fresh, Ready, AtBarrier, AtCollective, Ended } state;
    Fiber *fiber;
    const char *file;
    int line;
    Op op;
    unsigned mask;
    uint64_t result;
    // Copies that it has begun, of which `copied` are done, and the groups that it has made of them.
    std::vector<Copy> copies;
    size_t copied;
    unsigned groups;
};

struct Group {
    Op op;
    unsigned mask, arrived;
};

struct Warp {
    unsigned present;   // lanes that have not ended
    unsigned groups;
    Group group[32];
    Lane lanes[32];
};

struct Block {
    const Launch *launch;
    unsigned count, live, waiting;
    int votes, votes_kind;
    Thread threads[MOST_THREADS];
    Warp warps[MOST_THREADS / 32];
    uint16_t ready[MOST_THREADS];
    unsigned n_ready;
};

Block block;
alignas(64) unsigned char parameters[32768];
unsigned current;
Fiber main_fiber, *running = &main_fiber;
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<Fiber *> idle;
CUresult failure;
uint64_t random_state;

// Set while a kernel runs, for the handler of SIGSEGV.
volatile pid_t launching_thread;
sigjmp_buf out_of_fault;
volatile uint64_t fault_address;
volatile int fault_code;

unsigned random(unsigned below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return unsigned(((random_state >> 32) * below) >> 32);
}

void become(unsigned thread) {
    current = thread;
    unsigned x = blockDim.x, y = blockDim.y;
    threadIdx = {thread % x, thread / x % y, thread / (x * y)};
    lane_number = thread % 32;
}

void go_to(Fiber *fiber) {
    Fiber *from = running;
    running = fiber;
    stack_begin = reinterpret_cast<uintptr_t>(fiber->stack) + Fiber::GUARD;
    from->leave_for(fiber);
}

// ---- failures ------------------------------------------------------------------------------------------------------------

std::string place(const char *file, int line) {
    std::string name = file;
    size_t slash = name.rfind('/');
    return (slash == std::string::npos ? name : name.substr(slash + 1)) + ":" + std::to_string(line);
}

std::string doing(const Thread &t) {
    switch (t.state) {
        case Thread::Ended: return "ended";
        case Thread::AtBarrier: return "at __syncthreads of " + place(t.file, t.line);
        case Thread::AtCollective: {
            char mask[16];
            snprintf(mask, sizeof mask, "0x%08x", t.mask);
            return std::string("at ") + op_name(t.op) + "(" + mask + ") of " + place(t.file, t.line);
        }
        default: return "running";
    }
}

std::string all_threads() {
    std::string text;
    int ranges = 0;
    for (unsigned i = 0, end; i < block.count; i = end) {
        std::string what = doing(block.threads[i]);
        for (end = i + 1; end < block.count && doing(block.threads[end]) == what;) ++end;
        if (++ranges > 8) return text + ", ..";
        text += (text.empty() ? "thread" : ", ") + std::string(text.empty() ? (end > i + 1 ? "s " : " ") : "");
        text += std::to_string(i) + (end > i + 1 ? "-" + std::to_string(end - 1) : "") + " " + what;
    }
    return text;
}

std::string where() {
    char text[256];
    snprintf(text, sizeof text, "kernel %s, block (%u,%u,%u)", block.launch->kernel->name, blockIdx.x, blockIdx.y, blockIdx.z);
    return text;
}

[[noreturn]] void fail(const std::string &what) {
    say("%s: %s", where().c_str(), what.c_str());
    failure = CUDA_ERROR_LAUNCH_FAILED;
    go_to(&main_fiber);
    __builtin_unreachable();
}

// ---- order ---------------------------------------------------------------------------------------------------------------

// Makes ready, in shuffled order, those of `wanted` lanes of each warp for which `take` says so.
template <class F> void make_ready(F take) {
    unsigned warps = (block.count + 31) / 32, order[MOST_THREADS / 32];
    for (unsigned i = 0; i < warps; ++i) {
        unsigned j = random(i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    for (unsigned i = 0; i < warps; ++i) {
        // An odd step and any start go through all lanes of a warp.
        unsigned bits = random(1u << 16), step = (bits & 31u) | 1u, lane = bits >> 5;
        for (int n = 0; n < 32; ++n, lane += step) {
            unsigned thread = order[i] * 32 + (lane & 31u);
            if (thread < block.count && take(block.threads[thread])) block.ready[block.n_ready++] = uint16_t(thread);
        }
    }
}

void make_lanes_ready(unsigned warp, unsigned mask, const uint64_t result[32], bool with_results) {
    unsigned bits = random(1u << 16), step = (bits & 31u) | 1u, lane = bits >> 5;
    for (int n = 0; n < 32; ++n, lane += step) {
        unsigned l = lane & 31u;
        if (!(mask >> l & 1u)) continue;
        Thread &t = block.threads[warp * 32 + l];
        t.state = Thread::Ready;
        if (with_results) t.result = result[l];
        if (warp * 32 + l != current) block.ready[block.n_ready++] = uint16_t(warp * 32 + l);
    }
}

// ---- threads -------------------------------------------------------------------------------------------------------------

void work();

Fiber *spare() {
    if (idle.empty()) {
        fibers.push_back(std::make_unique<Fiber>());
        fibers.back()->create(work);
        return fibers.back().get();
    }
    Fiber *fiber = idle.back();
    idle.pop_back();
    return fiber;
}

// The current thread waits, and returns when it has been made ready and taken.
void wait() {
    unsigned me = current;
    if (block.n_ready == 0) fail("no thread can go on: " + all_threads());
    unsigned next = block.ready[block.n_ready - 1];
    if (next == me) {
        --block.n_ready;
        return;
    }
    block.threads[me].fiber = running;
    if (block.threads[next].fiber) {
        --block.n_ready;
        go_to(block.threads[next].fiber);
    } else {
        go_to(spare());   // which takes `next`
    }
    become(me);
}

void release_barrier() {
    int votes = block.votes, kind = block.votes_kind, all = int(block.waiting);
    int result = kind == 0 ? votes : kind == 1 ? votes == all : votes != 0;
    block.waiting = 0;
    block.votes = 0;
    make_ready([&](Thread &t) {
        if (t.state != Thread::AtBarrier) return false;
        t.state = Thread::Ready;
        t.result = uint64_t(result);
        return true;
    });
}

void end_thread() {
    Thread &t = block.threads[current];
    Warp &warp = block.warps[current / 32];
    t.state = Thread::Ended;
    --block.live;
    warp.present &= ~(1u << lane_number);
    for (unsigned i = 0; i < warp.groups; ++i)
        if (warp.group[i].mask >> lane_number & 1u)
            fail("thread " + std::to_string(current) + " has ended without the " + op_name(warp.group[i].op) +
                 " that its warp waits in: " + all_threads());
    if (block.waiting != 0 && block.waiting == block.live) release_barrier();
}

// What a fiber does: it takes ready threads until there are none.
void work() {
    for (;;) {
        while (block.n_ready != 0) {
            unsigned next = block.ready[--block.n_ready];
            if (Fiber *fiber = block.threads[next].fiber) {
                idle.push_back(running);
                go_to(fiber);
                continue;
            }
            become(next);
            block.launch->kernel->run(parameters);
            end_thread();
        }
        if (block.live != 0) fail("no thread can go on: " + all_threads());
        idle.push_back(running);
        go_to(&main_fiber);
    }
}

void arrive(int predicate, int kind, const char *file, int line) {
    Thread &t = block.threads[current];
    t.file = file;
    t.line = line;
    t.state = Thread::AtBarrier;
    if (block.waiting == 0) {
        block.votes_kind = kind;
    } else if (block.votes_kind != kind) {
        fail("threads are at barriers of different kinds: " + all_threads());
    }
    block.votes += predicate != 0;
    // Threads that end count as arrived, as on the device; threads at another line do not.
    if (++block.waiting == block.live) {
        for (unsigned i = 0; i < block.count; ++i) {
            const Thread &other = block.threads[i];
            if (other.state == Thread::AtBarrier && (other.line != line || strcmp(other.file, file) != 0))
                fail("threads are at different barriers: " + all_threads());
        }
        release_barrier();
    }
    wait();
}

}   // namespace

void barrier(const char *file, int line) { arrive(0, 3, file, line); }

int barrier_vote(int predicate, int kind, const char *file, int line) {
    arrive(predicate, kind, file, line);
    return int(block.threads[current].result);
}

void trap(const char *file, int line) { fail("thread " + std::to_string(current) + " gave __trap() at " + place(file, line)); }

void refuse_access(uint64_t address, size_t bytes, CUresult why) {
    const char *fault = why == CUDA_ERROR_MISALIGNED_ADDRESS ? "misaligned" : "illegal";
    say("%s, thread %u: %s address 0x%llx of an access of %zu bytes, %s", where().c_str(), current, fault,
        static_cast<unsigned long long>(address), bytes, memory::nearest(address).c_str());
    failure = why;
    go_to(&main_fiber);
    __builtin_unreachable();
}

uint64_t collective(Op op, unsigned mask, Lane lane, const char *file, int line) {
    Warp &warp = block.warps[current / 32];
    Thread &t = block.threads[current];
    t.file = file;
    t.line = line;
    t.op = op;
    t.mask = mask;
    t.state = Thread::AtCollective;
    unsigned own = 1u << lane_number;
    if (!(mask & own)) fail("thread " + std::to_string(current) + " is not in the mask of its own call: " + all_threads());
    if (mask & ~warp.present) fail("a lane of the mask has ended or is not there: " + all_threads());
    unsigned i = 0;
    while (i < warp.groups && !(warp.group[i].mask == mask && warp.group[i].op == op)) ++i;
    if (i == warp.groups) warp.group[warp.groups++] = {op, mask, 0};
    warp.lanes[lane_number] = lane;
    warp.group[i].arrived |= own;
    if (warp.group[i].arrived != mask) {
        wait();
        return t.result;
    }
    uint64_t results[32];
    int wrong = collect(op, mask, warp.lanes, results);
    if (wrong >= 0)
        fail("lane " + std::to_string(wrong) + " reads lane " + std::to_string(warp.lanes[wrong].source) +
             ", which is not in the mask: " + all_threads());
    warp.group[i] = warp.group[--warp.groups];
    make_lanes_ready(current / 32, mask, results, op != Op::Sync && op < Op::Mma);
    return t.result;
}

// ---- copies ----------------------------------------------------------------------------------------------------------------

void copy_begin(Copy copy) {
    Thread &t = block.threads[current];
    copy.group = t.groups;
    t.copies.push_back(copy);
}

void copy_group() { ++block.threads[current].groups; }

bool copy_take(unsigned keep, Copy &copy) {
    Thread &t = block.threads[current];
    // What is of no group yet is not waited for.
    if (t.copied == t.copies.size() || t.copies[t.copied].group + keep >= t.groups) return false;
    copy = t.copies[t.copied++];
    return true;
}

// ---- faults ----------------------------------------------------------------------------------------------------------------

namespace {

struct sigaction before[2];

void on_fault(int signal, siginfo_t *info, void *context) {
    uint64_t address = reinterpret_cast<uintptr_t>(info->si_addr);
    if (launching_thread != 0 && launching_thread == pid_t(syscall(SYS_gettid))) {
        fault_address = address;
        fault_code = info->si_code;
        siglongjmp(out_of_fault, 1);
    }
    if (memory::in_arena(address)) {
        char text[160];
        int n = snprintf(text, sizeof text, "hotseam emulator: host code touched device memory at 0x%llx\n",
                         static_cast<unsigned long long>(address));
        if (n > 0 && write(2, text, size_t(n)) < 0) errno = 0;
    }
    const struct sigaction &old = before[signal == SIGBUS];
    if (old.sa_flags & SA_SIGINFO) {
        old.sa_sigaction(signal, info, context);
    } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
        old.sa_handler(signal);
    } else {
        sigaction(signal, &old, nullptr);   // and the access is tried again
    }
}

// The handler runs on a stack of its own, since the one of a fiber may be what overflowed.
void catch_faults() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_fault;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, &before[0]);
        sigaction(SIGBUS, &action, &before[1]);
    });
    struct Stack {
        void *memory = nullptr;
        ~Stack() {
            if (!memory) return;
            stack_t off = {};
            off.ss_flags = SS_DISABLE;
            sigaltstack(&off, nullptr);
            free(memory);
        }
    };
    static thread_local Stack stack;
    static thread_local bool looked = false;
    if (looked) return;
    looked = true;
    stack_t now;
    if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE)) {
        stack_t mine = {};
        mine.ss_size = 64 << 10;
        mine.ss_sp = stack.memory = malloc(mine.ss_size);
        sigaltstack(&mine, nullptr);
    }
}

CUresult faulted() {
    std::string what = where() + ", thread " + std::to_string(current);
    for (auto &fiber : fibers)
        if (fiber->guards(fault_address)) {
            say("%s: its stack of %zu KiB overflowed", what.c_str(), Fiber::STACK >> 10);
            return CUDA_ERROR_LAUNCH_FAILED;
        }
    if (fault_code == SI_KERNEL && fault_address == 0) {
        say("%s: a misaligned address, or one that no pointer can have", what.c_str());
        return CUDA_ERROR_MISALIGNED_ADDRESS;
    }
    say("%s: illegal address 0x%llx, %s", what.c_str(), static_cast<unsigned long long>(fault_address),
        memory::nearest(fault_address).c_str());
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

// Dynamic shared memory ends at a page that cannot be touched.
unsigned char *shared_end() {
    static unsigned char *end = [] {
        constexpr size_t bytes = (MOST_SHARED + 4095) / 4096 * 4096;
        void *at = mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED || mprotect(static_cast<char *>(at) + bytes, 4096, PROT_NONE) != 0) abort();
        return static_cast<unsigned char *>(at) + bytes;
    }();
    return end;
}

void run_block(const Launch &launch, unsigned bytes) {
    // NaN for floats of every width, so that what is read before it is written shows.
    const Kernel &kernel = *launch.kernel;
    if (kernel.shared_begin) memset(kernel.shared_begin, 0xff, size_t(kernel.shared_end - kernel.shared_begin));
    memset(dynamic_shared, 0xff, bytes);
    for (unsigned i = 0; i < block.count; ++i) {
        block.threads[i].fiber = nullptr;
        block.threads[i].state = Thread::Fresh;
        block.threads[i].copies.clear();
        block.threads[i].copied = block.threads[i].groups = 0;
    }
    for (unsigned i = 0; i * 32 < block.count; ++i) {
        unsigned lanes = std::min(32u, block.count - i * 32);
        block.warps[i].present = lanes == 32 ? ~0u : (1u << lanes) - 1;
        block.warps[i].groups = 0;
    }
    block.live = block.count;
    block.waiting = block.n_ready = 0;
    block.votes = 0;
    make_ready([](Thread &) { return true; });
    go_to(spare());
}

}   // namespace

CUresult run_grid(const Launch &launch) {
    // Static shared memory and `threadIdx` are the process's, so grids of several threads of the host run in turn.
    static std::mutex one_at_a_time;
    std::lock_guard<std::mutex> lock(one_at_a_time);
    memory::Open open;
    catch_faults();
    blockDim = launch.block;
    gridDim = launch.grid;
    block.launch = &launch;
    memcpy(parameters, launch.params.data(), launch.params.size());
    stack_bytes = Fiber::STACK - Fiber::GUARD;
    block.count = launch.block.x * launch.block.y * launch.block.z;
    unsigned bytes = (launch.shared + 15) / 16 * 16;
    dynamic_shared = shared_end() - bytes;
    dynamic_shared_bytes = bytes;
    // The same for every launch, so that a replay of a graph does what its capture would have done.
    random_state = (settings().seed + 1) * 0x9e3779b97f4a7c15ull;
    failure = CUDA_SUCCESS;
    running = &main_fiber;
    if (sigsetjmp(out_of_fault, 0) == 0) {
        launching_thread = pid_t(syscall(SYS_gettid));
        for (unsigned z = 0; z < gridDim.z && failure == CUDA_SUCCESS; ++z)
            for (unsigned y = 0; y < gridDim.y && failure == CUDA_SUCCESS; ++y)
                for (unsigned x = 0; x < gridDim.x && failure == CUDA_SUCCESS; ++x) {
                    blockIdx = {x, y, z};
                    run_block(launch, bytes);
                }
    } else {
        failure = faulted();
    }
    launching_thread = 0;
    if (failure != CUDA_SUCCESS) {
        // Threads may hang on any of the stacks.
        idle.clear();
        for (auto &fiber : fibers) {
            fiber->begin(work);
            idle.push_back(fiber.get());
        }
    }
    return failure;
}

}   // namespace hotseam_emulated
