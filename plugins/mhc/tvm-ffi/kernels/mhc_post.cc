// `mhc.post` as a TVM-FFI function, for the variant `mhc/tvm-ffi`. Stands for what a kernel compiler emits.
//
//   c++ -std=c++17 -O3 -shared -fPIC -I $TVM_FFI/include -I $TVM_FFI/3rdparty/dlpack/include \
//       -o mhc_post.so mhc_post.cc -L $TVM_FFI/lib -ltvm_ffi
//
// where TVM_FFI is the directory of the package `apache-tvm-ffi`. Only its libtvm_ffi.so is needed to run it.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

namespace {

using tvm::ffi::TensorView;

constexpr int64_t kStreams = 16;

const float* f32(const TensorView& t, int ndim, const char* name) {
  const DLDataType dtype = t.dtype();
  if (dtype.code != kDLFloat || dtype.bits != 32 || t.device().device_type != kDLCPU || t.ndim() != ndim) {
    TVM_FFI_THROW(TypeError) << name << ": expected " << ndim << " dimensions of f32 on the CPU, found " << t.ndim();
  }
  return static_cast<const float*>(t.data_ptr());
}

// streams_k = post_k * f + sum_i comb[i, k] * streams_i, in place.
void MhcPost(TensorView f, TensorView post, TensorView comb, TensorView streams) {
  const float *from = f32(f, 2, "f"), *gates = f32(post, 2, "post"), *mix = f32(comb, 3, "comb");
  float* to = const_cast<float*>(f32(streams, 3, "streams"));
  const int64_t rows = streams.size(0), hc = streams.size(1), hidden = streams.size(2);
  if (hc < 1 || hc > kStreams) {
    TVM_FFI_THROW(ValueError) << "streams: expected 1 to " << kStreams << " of them, found " << hc;
  }
  for (int64_t r = 0; r < rows; ++r, from += hidden, gates += hc, mix += hc * hc, to += hc * hidden) {
    for (int64_t d = 0; d < hidden; ++d) {
      float old[kStreams];
      for (int64_t i = 0; i < hc; ++i) old[i] = to[i * hidden + d];
      for (int64_t k = 0; k < hc; ++k) {
        float sum = gates[k] * from[d];
        for (int64_t i = 0; i < hc; ++i) sum += mix[i * hc + k] * old[i];
        to[k * hidden + d] = sum;
      }
    }
  }
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(mhc_post, MhcPost);
