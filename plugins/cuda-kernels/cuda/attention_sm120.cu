// The patched `attention.core` of SM120. A kernel for each form of entries, so that all loops have known lengths.
#include "core_sm120.cuh"

// Grid of all but the last: tiles of heads, parts, rows. One part of the keys for each block, or all where `partial` is null.
KERNEL_BOUNDED(hotseam_attention_sm120_bf16_64, Sm120CoreParams, SM120_THREADS) {
    DYNAMIC_SHARED(unsigned char, bytes);
    sm120_heads<Sm120Form<64, 0, false>>(p, bytes);
}

KERNEL_BOUNDED(hotseam_attention_sm120_bf16_512, Sm120CoreParams, SM120_THREADS) {
    DYNAMIC_SHARED(unsigned char, bytes);
    sm120_heads<Sm120Form<512, 0, false>>(p, bytes);
}

KERNEL_BOUNDED(hotseam_attention_sm120_fp8_64, Sm120CoreParams, SM120_THREADS) {
    DYNAMIC_SHARED(unsigned char, bytes);
    sm120_heads<Sm120Form<64, 48, false>>(p, bytes);
}

KERNEL_BOUNDED(hotseam_attention_sm120_fp8_512, Sm120CoreParams, SM120_THREADS) {
    DYNAMIC_SHARED(unsigned char, bytes);
    if (HOTSEAM_BLOCK_SCALED) {
        sm120_heads<Sm120Form<512, 448, true>>(p, bytes);
    } else {
        sm120_heads<Sm120Form<512, 448, false>>(p, bytes);
    }
}

// Joins the parts of a row and head in their order. Grid: heads, rows; four channels a thread.
KERNEL_BOUNDED(hotseam_attention_sm120_join, Sm120CoreParams, 128) {
    unsigned head = blockIdx.x, dim = (unsigned)p.core.args.q.shape[2], channel = 4 * threadIdx.x;
    CoreRow r;
    if (channel >= dim || !sm120_row(p, p.core.first_row + blockIdx.y, r)) return;
    CoreState all{-HOTSEAM_INFINITY, 0.0f};
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    unsigned parts = (r.keys + r.part - 1) / r.part;
    for (unsigned part = 0; part < parts; part++) {
        float4 other = load_floats(core_sums(p.core, r.row, part, head) + channel);
        float mine, theirs;
        core_take(all, *core_state(p.core, r.row, part, head), mine, theirs);
        sums = make_float4(core_taken(sums.x, other.x, mine, theirs), core_taken(sums.y, other.y, mine, theirs),
                           core_taken(sums.z, other.z, mine, theirs), core_taken(sums.w, other.w, mine, theirs));
    }
    float by = core_factor(all, ((const float *)p.core.args.sinks.data)[head]);
    float *out = (float *)p.core.args.out.data + (r.row * p.core.args.q.shape[1] + head) * dim + channel;
    store_floats(out, make_float4(sums.x * by, sums.y * by, sums.z * by, sums.w * by));
}
