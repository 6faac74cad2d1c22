// Copies from global to shared memory that go on while the thread does something else.
//
// `copy_16`, `copy_8` and `copy_4` begin one of so many bytes, both addresses a multiple of them; zeros are written if it is not
// `there`. `copy_commit` makes a group of what was begun since the last; `copy_wait(n)` waits until all groups of this thread but
// the `n` last ones are done, n below 8. What other threads have copied is there after they have waited and a barrier.
// The emulated device writes when `copy_wait` is called, so that what is read too early is poison.
#pragma once

#include "kernel.cuh"

#ifndef HOTSEAM_EMULATED
DEVICE void copy_16(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

DEVICE void copy_8(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 8 : 0)
                 : "memory");
}

DEVICE void copy_4(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N> DEVICE void copy_wait_for() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// The instruction has its number in itself.
DEVICE void copy_wait(unsigned n) {
    switch (n) {
    case 0: copy_wait_for<0>(); break;
    case 1: copy_wait_for<1>(); break;
    case 2: copy_wait_for<2>(); break;
    case 3: copy_wait_for<3>(); break;
    case 4: copy_wait_for<4>(); break;
    case 5: copy_wait_for<5>(); break;
    case 6: copy_wait_for<6>(); break;
    default: copy_wait_for<7>(); break;
    }
}
#endif
