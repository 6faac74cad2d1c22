// Entries of KV pools: where a slot lies, and its values in every layout of the contract (`HOTSEAM_LAYOUT_*`), which
// `hotseam_sdk::layouts` defines in Rust. Steps and bits are the same as there.
//
// Values are read and written by four, from a multiple of four on. Dimensions, and the values before the roped ones, are
// multiples of eight; the launchers see to it.
#pragma once

#include "block.cuh"
#include "weights.cuh"

// Numbers --------------------------------------------------------------------------------------------------------------

// Nearest bf16, ties to even; a NaN stays one and becomes quiet.
DEVICE unsigned bf16_bits(float value) {
    unsigned bits = __float_as_uint(value), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return (value != value ? bits | 0x400000u : rounded) >> 16;
}

DEVICE float bf16_rounded(float value) { return bf16_value(bf16_bits(value)); }

// Nearest e4m3, ties to even, at most 448; 0x7f for NaN.
DEVICE unsigned e4m3_bits(float value) {
    if (value != value) return 0x7f;
    float size = fminf(fabsf(value), 448.0f);
    unsigned bits = __float_as_uint(size), code = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
    // Below 2^-6 values are multiples of 2^-9, which is the last place of 2^14.
    if (size < 0.015625f) code = __float_as_uint(size + 16384.0f) & 15u;
    return (__float_as_uint(value) >> 24 & 0x80u) | code;
}

// Nearest e2m1, ties to even, at most 6; NaN becomes 6 with its sign.
DEVICE unsigned e2m1_bits(float value) {
    float size = fabsf(value);
    unsigned code = (unsigned)(size > 0.25f) + (unsigned)(size >= 0.75f) + (unsigned)(size > 1.25f) + (unsigned)(size >= 1.75f)
        + (unsigned)(size > 2.5f) + (unsigned)(size >= 3.5f) + (unsigned)(size > 5.0f);
    return (size != size ? 7u : code) | (__float_as_uint(value) >> 28 & 8u);
}

// The e8m0 of the least power of two that is not below a positive normal number; 255 for infinity and NaN.
DEVICE unsigned e8m0_at_least(float value) {
    unsigned bits = __float_as_uint(value), code = (bits >> 23 & 0xffu) + (unsigned)((bits & 0x7fffffu) != 0);
    return code < 255u ? code : 255u;
}

// Slots ----------------------------------------------------------------------------------------------------------------

// The two parts of an entry; `data` is null for one that is not there.
struct Entry {
    unsigned char *data, *scale;
};

DEVICE Entry pool_entry(const HotseamPoolRef &pool, long long slot) {
    long long page = slot / pool.entries_per_page, i = slot % pool.entries_per_page;
    if (slot < 0 || page >= pool.bytes.shape[0]) return Entry{nullptr, nullptr};
    unsigned char *bytes = (unsigned char *)pool.bytes.data + page * pool.bytes.shape[1];
    return Entry{bytes + i * pool.data_bytes,
                 bytes + (long long)pool.entries_per_page * pool.data_bytes + i * pool.scale_bytes};
}

// Entry `number` of a sequence, by the pool's table.
DEVICE Entry pool_lookup(const HotseamPoolRef &pool, long long seq, long long number) {
    long long column = number / pool.entries_per_page;
    if (number < 0 || column >= pool.table_width) return Entry{nullptr, nullptr};
    long long page = pool.table[seq * pool.table_width + column];
    return page < 0 ? Entry{nullptr, nullptr}
                    : pool_entry(pool, page * pool.entries_per_page + number % pool.entries_per_page);
}

// Reading --------------------------------------------------------------------------------------------------------------

DEVICE void store_floats(float *to, float4 v) { store_floats_until(to, 0, 4, v); }

DEVICE unsigned load_word(const unsigned char *from) {
    if (((size_t)from & 3) == 0) return *(const unsigned *)from;
    return from[0] | from[1] << 8 | from[2] << 16 | (unsigned)from[3] << 24;
}

DEVICE float4 bf16_four(const unsigned char *from) {
    unsigned words[2];
    load_words(from, words);
    return make_float4(bf16_value(words[0] & 0xffffu), __uint_as_float(words[0] & 0xffff0000u),
                       bf16_value(words[1] & 0xffffu), __uint_as_float(words[1] & 0xffff0000u));
}

DEVICE float4 e4m3_four(const unsigned char *from, float scale) {
    unsigned word = load_word(from);
    return make_float4(e4m3_value(word & 255u) * scale, e4m3_value(word >> 8 & 255u) * scale,
                       e4m3_value(word >> 16 & 255u) * scale, e4m3_value(word >> 24) * scale);
}

// Values `i .. i + 4` of an entry; in the rotated space if the layout rotates.
DEVICE float4 entry_four(const HotseamPoolRef &pool, Entry entry, unsigned i) {
    switch (pool.layout) {
    case HOTSEAM_LAYOUT_KV_F32:
    case HOTSEAM_LAYOUT_KEY_F32: {
        unsigned words[4];
        load_words(entry.data + 4 * i, words);
        return make_float4(__uint_as_float(words[0]), __uint_as_float(words[1]), __uint_as_float(words[2]),
                           __uint_as_float(words[3]));
    }
    case HOTSEAM_LAYOUT_KV_BF16:
    case HOTSEAM_LAYOUT_KEY_BF16: return bf16_four(entry.data + 2 * i);
    case HOTSEAM_LAYOUT_KV_FP8_DS_MLA: {
        unsigned nope = pool.dim - pool.rope_dim;
        if (i >= nope) return bf16_four(entry.data + 2 * i - nope);
        return e4m3_four(entry.data + i, e8m0_value(entry.scale[i / 64]));
    }
    case HOTSEAM_LAYOUT_KEY_FP8_HADAMARD: return e4m3_four(entry.data + i, __uint_as_float(load_word(entry.scale)));
    case HOTSEAM_LAYOUT_KEY_FP4_HADAMARD: {
        unsigned low = entry.data[i / 2], high = entry.data[i / 2 + 1];
        float scale = e8m0_value(entry.scale[i / 32]);
        return make_float4(e2m1_value(low & 15u) * scale, e2m1_value(low >> 4) * scale, e2m1_value(high & 15u) * scale,
                           e2m1_value(high >> 4) * scale);
    }
    default: return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// Rows of a warp -------------------------------------------------------------------------------------------------------

// Most values of an entry.
#define ENTRY_MOST 1024

// Up to `128 * N` values that a warp holds: value `128 n + 4 lane + c` is `v[n][c]` of a lane. Those past the end are zero.
template <unsigned N> struct WarpRow {
    float v[N][4];
};

DEVICE unsigned row_place(unsigned n) { return 128 * n + 4 * lane_id(); }

template <unsigned N> DEVICE WarpRow<N> row_load(const float *from, unsigned dim) {
    WarpRow<N> row;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row_place(n) < dim) four = load_floats(from + row_place(n));
        row.v[n][0] = four.x;
        row.v[n][1] = four.y;
        row.v[n][2] = four.z;
        row.v[n][3] = four.w;
    }
    return row;
}

template <unsigned N> DEVICE void row_store(const WarpRow<N> &row, unsigned dim, float *to) {
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
        if (row_place(n) < dim) {
            store_floats(to + row_place(n), make_float4(row.v[n][0], row.v[n][1], row.v[n][2], row.v[n][3]));
        }
    }
}

// RMS norm with weights.
template <unsigned N> DEVICE void row_norm(WarpRow<N> &row, unsigned dim, const float *weight, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) sum = fmaf(row.v[n][c], row.v[n][c], sum);
    }
    float scale = 1.0f / sqrtf(warp_sum(sum) / (float)dim + eps);
    WarpRow<N> weights = row_load<N>(weight, dim);
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) row.v[n][c] = row.v[n][c] * scale * weights.v[n][c];
    }
}

// Rotates the last values by the tables' row `position`, which is in them. Products and sums are rounded one by one, as on
// the CPU.
template <unsigned N>
DEVICE void row_rope(WarpRow<N> &row, unsigned dim, const HotseamRopeTables &rope, long long position) {
    unsigned half = (unsigned)rope.cos.shape[1], first = dim - 2 * half;
    const float *cosines = (const float *)rope.cos.data + position * half;
    const float *sines = (const float *)rope.sin.data + position * half;
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c += 2) {
            unsigned i = row_place(n) + c;
            if (i < first || i >= dim) continue;
            float cosine = cosines[(i - first) / 2], sine = sines[(i - first) / 2];
            float even = row.v[n][c], odd = row.v[n][c + 1];
            row.v[n][c] = __fsub_rn(__fmul_rn(even, cosine), __fmul_rn(odd, sine));
            row.v[n][c + 1] = __fadd_rn(__fmul_rn(odd, cosine), __fmul_rn(even, sine));
        }
    }
}

// The rotation of the layouts that rotate: bf16, Hadamard times `dim^-1/2` with butterflies in rising order, bf16.
template <unsigned N> DEVICE void row_rotate(WarpRow<N> &row, unsigned dim) {
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) row.v[n][c] = bf16_rounded(row.v[n][c]);
        float a = row.v[n][0] + row.v[n][1], b = row.v[n][0] - row.v[n][1];
        float c = row.v[n][2] + row.v[n][3], d = row.v[n][2] - row.v[n][3];
        row.v[n][0] = a + c;
        row.v[n][1] = b + d;
        row.v[n][2] = a - c;
        row.v[n][3] = b - d;
    }
    for (unsigned step = 1; 4 * step < dim && step < 32; step *= 2) {
        bool high = (lane_id() & step) != 0;
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
#pragma unroll
            for (unsigned c = 0; c < 4; c++) {
                float other = __shfl_xor_sync(ALL_LANES, row.v[n][c], step);
                row.v[n][c] = high ? other - row.v[n][c] : row.v[n][c] + other;
            }
        }
    }
#pragma unroll
    for (unsigned step = 1; step < N; step *= 2) {
        if (128 * step >= dim) break;
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            if ((n & step) != 0) continue;
#pragma unroll
            for (unsigned c = 0; c < 4; c++) {
                float low = row.v[n][c], high = row.v[n + step][c];
                row.v[n][c] = low + high;
                row.v[n + step][c] = low - high;
            }
        }
    }
    float scale = 1.0f / sqrtf((float)dim);
#pragma unroll
    for (unsigned n = 0; n < N; n++) {
#pragma unroll
        for (unsigned c = 0; c < 4; c++) row.v[n][c] = bf16_rounded(row.v[n][c] * scale);
    }
}

// Largest magnitude of four, at least `floor`; NaN are skipped.
DEVICE float four_most(const float (&v)[4], float floor) {
    return fmaxf(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))), floor);
}

// Scale of all values in `HOTSEAM_LAYOUT_KEY_FP8_HADAMARD`.
template <unsigned N> DEVICE float row_e4m3_scale(const WarpRow<N> &row) {
    float most = 1e-4f;
#pragma unroll
    for (unsigned n = 0; n < N; n++) most = four_most(row.v[n], most);
    return warp_max(most) / 448.0f;
}

// Scale of the group of 32 values that part `n` of this lane is of, in `HOTSEAM_LAYOUT_KEY_FP4_HADAMARD`. e2m1 has no NaN,
// so one makes the scale of its group NaN.
template <unsigned N> DEVICE unsigned row_e2m1_scale(const WarpRow<N> &row, unsigned n) {
    float most = four_most(row.v[n], 6.0f * __uint_as_float(0x00800000u));
    bool nan = row.v[n][0] != row.v[n][0] || row.v[n][1] != row.v[n][1] || row.v[n][2] != row.v[n][2]
        || row.v[n][3] != row.v[n][3];
    unsigned nans = __ballot_sync(ALL_LANES, nan) >> (lane_id() & 24) & 0xffu;
#pragma unroll
    for (unsigned step = 1; step < 8; step *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
    return nans != 0 ? 255u : e8m0_at_least(most * (1.0f / 6.0f));
}

// Writing --------------------------------------------------------------------------------------------------------------

DEVICE void store_word(unsigned char *to, unsigned word) {
    if (((size_t)to & 3) == 0) {
        *(unsigned *)to = word;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(word >> 8 * i);
}

DEVICE void store_bf16_four(unsigned char *to, const float (&v)[4]) {
    unsigned low = bf16_bits(v[0]) | bf16_bits(v[1]) << 16, high = bf16_bits(v[2]) | bf16_bits(v[3]) << 16;
    if (((size_t)to & 7) == 0) {
        *(uint2 *)to = make_uint2(low, high);
    } else {
        store_word(to, low);
        store_word(to + 4, high);
    }
}

DEVICE unsigned e4m3_word(const float (&v)[4], float inverse) {
    return e4m3_bits(v[0] * inverse) | e4m3_bits(v[1] * inverse) << 8 | e4m3_bits(v[2] * inverse) << 16
        | e4m3_bits(v[3] * inverse) << 24;
}

// Writes a row (roped, not rotated) as an entry. The whole warp calls it.
template <unsigned N> DEVICE void row_encode(WarpRow<N> &row, const HotseamPoolRef &pool, Entry entry) {
    unsigned dim = pool.dim, lane = lane_id();
    switch (pool.layout) {
    case HOTSEAM_LAYOUT_KV_F32:
    case HOTSEAM_LAYOUT_KEY_F32:
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            if (row_place(n) >= dim) continue;
            unsigned char *to = entry.data + 4 * row_place(n);
            if (((size_t)to & 15) == 0) {
                *(float4 *)to = make_float4(row.v[n][0], row.v[n][1], row.v[n][2], row.v[n][3]);
            } else {
#pragma unroll
                for (unsigned c = 0; c < 4; c++) store_word(to + 4 * c, __float_as_uint(row.v[n][c]));
            }
        }
        break;
    case HOTSEAM_LAYOUT_KV_BF16:
    case HOTSEAM_LAYOUT_KEY_BF16:
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            if (row_place(n) < dim) store_bf16_four(entry.data + 2 * row_place(n), row.v[n]);
        }
        break;
    case HOTSEAM_LAYOUT_KV_FP8_DS_MLA: {
        unsigned nope = dim - pool.rope_dim;
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            unsigned i = row_place(n);
#pragma unroll
            for (unsigned c = 0; c < 4; c++) row.v[n][c] = bf16_rounded(row.v[n][c]);
            // A group of 64 values lies in 16 lanes; roped values are in no group.
            float most = i < nope ? four_most(row.v[n], 1e-4f) : 1e-4f;
#pragma unroll
            for (unsigned step = 1; step < 16; step *= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
            unsigned scale = e8m0_at_least(most * (1.0f / 448.0f));
            if (i < nope) {
                store_word(entry.data + i, e4m3_word(row.v[n], 1.0f / e8m0_value(scale)));
                if (i % 64 == 0) entry.scale[i / 64] = (unsigned char)scale;
            } else if (i < dim) {
                store_bf16_four(entry.data + 2 * i - nope, row.v[n]);
            }
        }
        for (unsigned g = (nope + 63) / 64 + lane; g < pool.scale_bytes; g += 32) entry.scale[g] = 0;
        break;
    }
    case HOTSEAM_LAYOUT_KEY_FP8_HADAMARD: {
        row_rotate(row, dim);
        float scale = row_e4m3_scale(row), inverse = 1.0f / scale;
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            if (row_place(n) < dim) store_word(entry.data + row_place(n), e4m3_word(row.v[n], inverse));
        }
        if (lane == 0) store_word(entry.scale, __float_as_uint(scale));
        break;
    }
    case HOTSEAM_LAYOUT_KEY_FP4_HADAMARD:
        row_rotate(row, dim);
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            unsigned i = row_place(n), scale = row_e2m1_scale(row, n);
            float inverse = 1.0f / e8m0_value(scale);
            if (i >= dim) continue;
            unsigned char *to = entry.data + i / 2;
            to[0] = (unsigned char)(e2m1_bits(row.v[n][0] * inverse) | e2m1_bits(row.v[n][1] * inverse) << 4);
            to[1] = (unsigned char)(e2m1_bits(row.v[n][2] * inverse) | e2m1_bits(row.v[n][3] * inverse) << 4);
            if (i % 32 == 0) entry.scale[i / 32] = (unsigned char)scale;
        }
        break;
    default: break;
    }
}

// Rounds a query as keys of a layout are rounded, in the rotated space if it rotates; other layouts leave it as it is. The
// query is the values times the factor that is returned, so that values are a few bits long in every rotated layout.
template <unsigned N> DEVICE float row_as_key(WarpRow<N> &row, unsigned layout, unsigned dim) {
    float factor = 1.0f;
    if (layout == HOTSEAM_LAYOUT_KEY_FP8_HADAMARD) {
        row_rotate(row, dim);
        factor = row_e4m3_scale(row);
        float inverse = 1.0f / factor;
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
#pragma unroll
            for (unsigned c = 0; c < 4; c++) row.v[n][c] = e4m3_value(e4m3_bits(row.v[n][c] * inverse));
        }
    } else if (layout == HOTSEAM_LAYOUT_KEY_FP4_HADAMARD) {
        row_rotate(row, dim);
#pragma unroll
        for (unsigned n = 0; n < N; n++) {
            float scale = e8m0_value(row_e2m1_scale(row, n)), inverse = 1.0f / scale;
#pragma unroll
            for (unsigned c = 0; c < 4; c++) row.v[n][c] = e2m1_value(e2m1_bits(row.v[n][c] * inverse)) * scale;
        }
    }
    return factor;
}
