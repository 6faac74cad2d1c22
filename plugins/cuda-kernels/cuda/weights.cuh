// The values of weight matrices, for every format of `HotseamWeightRef`. A value has the very bits that the host's own reader
// gives: codes and power-of-two scales are exact, NVFP4 is `(code * scale) * global`, which rounds once.
#pragma once

#include "kernel.cuh"

// One row of a matrix: its codes and its scales. `codes` is null for a row that is not there, whose values are zeros.
struct WeightRow {
    const unsigned char *codes;
    const unsigned char *scales;
    float global;
    unsigned format;
};

DEVICE WeightRow no_weights() { return WeightRow{nullptr, nullptr, 1.0f, HOTSEAM_WEIGHT_FORMAT_F32}; }

// Row `n` of a matrix of `k` inputs.
DEVICE WeightRow weight_row(const HotseamWeightRef &w, long long n, long long k) {
    const unsigned char *codes = (const unsigned char *)w.data.data;
    const unsigned char *scales = (const unsigned char *)w.scales.data;
    switch (w.format) {
    case HOTSEAM_WEIGHT_FORMAT_F32: return WeightRow{codes + 4 * n * k, nullptr, 1.0f, w.format};
    case HOTSEAM_WEIGHT_FORMAT_BF16: return WeightRow{codes + 2 * n * k, nullptr, 1.0f, w.format};
    case HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK:
        return WeightRow{codes + n * k, scales + n / 128 * ((k + 127) / 128), 1.0f, w.format};
    case HOTSEAM_WEIGHT_FORMAT_MXFP4: return WeightRow{codes + n * k / 2, scales + n * k / 32, 1.0f, w.format};
    case HOTSEAM_WEIGHT_FORMAT_NVFP4: return WeightRow{codes + n * k / 2, scales + n * k / 16, w.global_scale, w.format};
    default: return no_weights();
    }
}

// Row `n` of a tensor `[n, k]` in f32 or bf16.
DEVICE WeightRow tensor_row(const HotseamTensorRef &t, long long n, long long k) {
    bool narrow = t.dtype == HOTSEAM_DTYPE_BF16;
    unsigned format = narrow ? HOTSEAM_WEIGHT_FORMAT_BF16 : HOTSEAM_WEIGHT_FORMAT_F32;
    return WeightRow{(const unsigned char *)t.data + (narrow ? 2 : 4) * n * k, nullptr, 1.0f, format};
}

// A bf16's bits.
DEVICE float bf16_value(unsigned bits) { return __uint_as_float(bits << 16); }

// A power of two: `2^(code - 127)`, 255 is NaN.
DEVICE float e8m0_value(unsigned code) {
    return __uint_as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}

// An e4m3 as a float of 2^-120 its size: sign, exponent and mantissa moved in place. Not for NaN.
DEVICE float e4m3_small(unsigned code) { return __uint_as_float((code & 0x80) << 24 | (code & 0x7f) << 20); }

DEVICE float e4m3_value(unsigned code) {
    return (code & 0x7f) == 0x7f ? __uint_as_float(0x7fc00000u) : e4m3_small(code) * __uint_as_float((127u + 120) << 23);
}

// An e2m1, of the low four bits, as a float of 2^-126 its size.
DEVICE float e2m1_small(unsigned code) { return __uint_as_float((code & 8) << 28 | (code & 7) << 22); }

DEVICE float e2m1_value(unsigned code) { return e2m1_small(code) * __uint_as_float((127u + 126) << 23); }

// Four words from memory of any alignment.
DEVICE void load_words(const unsigned char *from, unsigned (&words)[4]) {
    if (((size_t)from & 15) == 0) {
        uint4 w = *(const uint4 *)from;
        words[0] = w.x;
        words[1] = w.y;
        words[2] = w.z;
        words[3] = w.w;
    } else if (((size_t)from & 3) == 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = ((const unsigned *)from)[i];
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[i] = from[4 * i] | from[4 * i + 1] << 8 | from[4 * i + 2] << 16 | (unsigned)from[4 * i + 3] << 24;
        }
    }
}

// Two words from memory of any alignment.
DEVICE void load_words(const unsigned char *from, unsigned (&words)[2]) {
    if (((size_t)from & 7) == 0) {
        uint2 w = *(const uint2 *)from;
        words[0] = w.x;
        words[1] = w.y;
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            words[i] = from[4 * i] | from[4 * i + 1] << 8 | from[4 * i + 2] << 16 | (unsigned)from[4 * i + 3] << 24;
        }
    }
}

// Four floats from memory aligned to four bytes.
DEVICE float4 load_floats(const float *from) {
    if (((size_t)from & 15) == 0) return *(const float4 *)from;
    return make_float4(from[0], from[1], from[2], from[3]);
}

// Four floats of a row from `col` on, zeros from `end` on.
DEVICE float4 load_floats_until(const float *row, long long col, long long end) {
    if (col + 4 <= end) return load_floats(row + col);
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (col < end) v.x = row[col];
    if (col + 1 < end) v.y = row[col + 1];
    if (col + 2 < end) v.z = row[col + 2];
    return v;
}

// Stores what `load_floats_until` reads.
DEVICE void store_floats_until(float *row, long long col, long long end, float4 v) {
    float *to = row + col;
    if (col + 4 <= end && ((size_t)to & 15) == 0) {
        *(float4 *)to = v;
        return;
    }
    if (col < end) to[0] = v.x;
    if (col + 1 < end) to[1] = v.y;
    if (col + 2 < end) to[2] = v.z;
    if (col + 3 < end) to[3] = v.w;
}

// Value `col` of a row.
DEVICE float weight_value(const WeightRow &w, long long col) {
    if (w.codes == nullptr) return 0.0f;
    switch (w.format) {
    case HOTSEAM_WEIGHT_FORMAT_F32: return ((const float *)w.codes)[col];
    case HOTSEAM_WEIGHT_FORMAT_BF16: return bf16_value(((const unsigned short *)w.codes)[col]);
    case HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK: return e4m3_value(w.codes[col]) * e8m0_value(w.scales[col / 128]);
    default: break;
    }
    float code = e2m1_value(w.codes[col / 2] >> 4 * (col & 1));
    if (w.format == HOTSEAM_WEIGHT_FORMAT_MXFP4) return code * e8m0_value(w.scales[col / 32]);
    return code * e4m3_value(w.scales[col / 16]) * w.global;
}

// Multiplies values of 2^-`LIFT` their size by `2^LIFT` and an e8m0, in one step where that factor is a float.
template <int LIFT, int N> DEVICE void lift(float (&v)[N], unsigned scale) {
    if (scale >= 1 && scale + LIFT <= 254) {
        float factor = __uint_as_float((scale + LIFT) << 23);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] *= factor;
    } else {
        float one = __uint_as_float((127u + LIFT) << 23), two = e8m0_value(scale);
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = v[i] * one * two;
    }
}

// Sixteen values from `col` on, a multiple of 16; zeros from `k` on.
DEVICE void weight_values(const WeightRow &w, long long col, long long k, float (&v)[16]) {
    if (w.codes == nullptr || col + 16 > k) {
        // Shifted in, not indexed: an index that is not known beforehand would move all of `v` out of registers.
#pragma unroll 1
        for (int i = 0; i < 16; i++) {
#pragma unroll
            for (int j = 0; j < 15; j++) v[j] = v[j + 1];
            v[15] = w.codes != nullptr && col + i < k ? weight_value(w, col + i) : 0.0f;
        }
        return;
    }
    if (w.format == HOTSEAM_WEIGHT_FORMAT_F32) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float4 four = load_floats((const float *)w.codes + col + 4 * i);
            v[4 * i] = four.x;
            v[4 * i + 1] = four.y;
            v[4 * i + 2] = four.z;
            v[4 * i + 3] = four.w;
        }
    } else if (w.format == HOTSEAM_WEIGHT_FORMAT_BF16) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned words[4];
            load_words(w.codes + 2 * (col + 8 * half), words);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[8 * half + 2 * i] = bf16_value(words[i] & 0xffff);
                v[8 * half + 2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
            }
        }
    } else if (w.format == HOTSEAM_WEIGHT_FORMAT_FP8_BLOCK) {
        unsigned words[4], nan = 0;
        load_words(w.codes + col, words);
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = e4m3_small(words[i / 4] >> 8 * (i % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) nan |= (words[i] & 0x7f7f7f7fu) + 0x01010101u;
        if ((nan & 0x80808080u) != 0) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if ((words[i / 4] >> 8 * (i % 4) & 0x7f) == 0x7f) v[i] = __uint_as_float(0x7fc00000u);
            }
        }
        lift<120>(v, w.scales[col / 128]);
    } else {
        unsigned words[2];
        load_words(w.codes + col / 2, words);
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] = e2m1_small(words[i / 8] >> 4 * (i % 8));
        if (w.format == HOTSEAM_WEIGHT_FORMAT_MXFP4) {
            lift<126>(v, w.scales[col / 32]);
        } else {
            // The power of two is shared out, because 2^126 times a scale is no float: code * scale * 2^-6 is still exact.
            float scale = e4m3_value(w.scales[col / 16]) * __uint_as_float((127u + 119) << 23);
            float global = w.global * 128.0f;
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] = v[i] * scale * global;
        }
    }
}
