// Scalar functions of the router, the experts and the gates. The exponential is the accurate one.
#pragma once

#include "kernel.cuh"

DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// `silu(min(gate, limit)) * clamp(up, -limit, limit)`; NaN stay NaN.
DEVICE float swiglu(float gate, float up, float limit) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return gate / (1.0f + expf(-gate)) * up;
}

// `sqrt(softplus(x))`, linear above 20 as torch has it.
DEVICE float sqrt_softplus(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }
