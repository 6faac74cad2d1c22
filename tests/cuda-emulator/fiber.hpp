// A stack of its own for each thread of a block that has to wait for others.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__) || defined(HOTSEAM_EMULATOR_UCONTEXT)
#define HOTSEAM_EMULATOR_UCONTEXT 1
#include <ucontext.h>
#endif

namespace hotseam_emulated {

#ifndef HOTSEAM_EMULATOR_UCONTEXT
// Saves what a call must keep, on the stack, and goes on where `to` was saved. MXCSR is the same for all of them.
extern "C" void hotseam_emulator_switch(void **from, void *to);
asm(R"(
.text
.type hotseam_emulator_switch, @function
hotseam_emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size hotseam_emulator_switch, .-hotseam_emulator_switch
)");
#endif

struct Fiber {
    // Local arrays of a thread live here, as they do in the local memory of a device; only touched pages cost memory.
    static constexpr size_t STACK = 256 << 10, GUARD = 4096;

    unsigned char *stack = nullptr;   // its guard page first
#ifdef HOTSEAM_EMULATOR_UCONTEXT
    ucontext_t context;
#else
    void *sp = nullptr;
#endif

    // Of the operating system's own stack, without `create`.
    Fiber() = default;

    void create(void (*entry)()) {
        void *at = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE) != 0) abort();
        stack = static_cast<unsigned char *>(at);
        begin(entry);
    }

    // What stood on it is forgotten: the next switch to it calls `entry`, which never returns.
    void begin(void (*entry)()) {
#ifdef HOTSEAM_EMULATOR_UCONTEXT
        getcontext(&context);
        context.uc_stack.ss_sp = stack + GUARD;
        context.uc_stack.ss_size = STACK - GUARD;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
#else
        void **top = reinterpret_cast<void **>(stack + STACK);
        // Six registers and the address to return to; above it one word, so that the stack is aligned as after a call.
        top[-2] = reinterpret_cast<void *>(entry);
        for (int i = -8; i < -2; ++i) top[i] = nullptr;
        sp = top - 8;
#endif
    }

    bool guards(uint64_t address) const {
        uint64_t low = reinterpret_cast<uintptr_t>(stack);
        return address >= low && address < low + GUARD;
    }

    void leave_for(Fiber *to) {
#ifdef HOTSEAM_EMULATOR_UCONTEXT
        swapcontext(&context, &to->context);
#else
        hotseam_emulator_switch(&sp, to->sp);
#endif
    }
};

}   // namespace hotseam_emulated
