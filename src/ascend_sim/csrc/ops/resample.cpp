// Changes of resolution, padding that repeats the border, and sampling at computed places.
#include "op.h"
#include "ops/single.h"

#include <ATen/Functions.h>

namespace {

// A factor that was not given arrives as 0 or -1.
std::optional<double> factor(double value) {
  return value > 0 ? std::optional(value) : std::nullopt;
}
std::optional<double> factor(float value) {
  return factor(widen(value));
}

} // namespace

#define UPSAMPLE_1D(op, function)                                                                                   \
  ACLNN(op, tensor(self), ints(size), flag(align), real(w), out(out)) {                                             \
    at::function##_out(out, self, size, align, factor(w));                                                          \
  }                                                                                                                 \
  ACLNN(op##Backward, tensor(grad), ints(size), ints(input), flag(align), real(w), out(out)) {                      \
    at::function##_backward_out(out, grad, size, input, align, factor(w));                                          \
  }
#define UPSAMPLE_2D_BACKWARD(op, function)                                                                          \
  ACLNN(op, tensor(grad), ints(size), ints(input), flag(align), real(h), real(w), out(out)) {                       \
    at::function##_backward_out(out, grad, size, input, align, factor(h), factor(w));                               \
  }
#define UPSAMPLE_2D(op, backward, function)                                                                         \
  ACLNN(op, tensor(self), ints(size), flag(align), real(h), real(w), out(out)) {                                    \
    at::function##_out(out, self, size, align, factor(h), factor(w));                                               \
  }                                                                                                                 \
  UPSAMPLE_2D_BACKWARD(backward, function)
#define UPSAMPLE_3D(op, function)                                                                                   \
  ACLNN(op, tensor(self), ints(size), flag(align), real(d), real(h), real(w), out(out)) {                           \
    at::function##_out(out, self, size, align, factor(d), factor(h), factor(w));                                    \
  }                                                                                                                 \
  ACLNN(op##Backward, tensor(grad), ints(size), ints(input), flag(align), real(d), real(h), real(w), out(out)) {    \
    at::function##_backward_out(out, grad, size, input, align, factor(d), factor(h), factor(w));                    \
  }
UPSAMPLE_1D(UpsampleLinear1d, upsample_linear1d)
UPSAMPLE_2D(UpsampleBilinear2d, UpsampleBilinear2dBackward, upsample_bilinear2d)
UPSAMPLE_2D_BACKWARD(UpsampleBilinear2dBackwardV2, upsample_bilinear2d)
UPSAMPLE_2D(UpsampleBilinear2dAA, UpsampleBilinear2dAABackward, _upsample_bilinear2d_aa)
UPSAMPLE_2D(UpsampleBicubic2d, UpsampleBicubic2dBackward, upsample_bicubic2d)
UPSAMPLE_2D(UpsampleBicubic2dAA, UpsampleBicubic2dAAGrad, _upsample_bicubic2d_aa)
UPSAMPLE_3D(UpsampleTrilinear3d, upsample_trilinear3d)

#define NEAREST_1D_BACKWARD(op, function)                                                                           \
  ACLNN(op##Backward, tensor(grad), ints(size), ints(input), real(w), out(out)) {                                   \
    at::function##_backward_out(out, grad, size, input, factor(w));                                                 \
  }
#define NEAREST_2D_BACKWARD(op, function)                                                                           \
  ACLNN(op##Backward, tensor(grad), ints(size), ints(input), real(h), real(w), out(out)) {                          \
    at::function##_backward_out(out, grad, size, input, factor(h), factor(w));                                      \
  }
#define NEAREST_3D(op, function)                                                                                    \
  ACLNN(op, tensor(self), ints(size), real(d), real(h), real(w), out(out)) {                                        \
    at::function##_out(out, self, size, factor(d), factor(h), factor(w));                                           \
  }                                                                                                                 \
  ACLNN(op##Backward, tensor(grad), ints(size), ints(input), real(d), real(h), real(w), out(out)) {                 \
    at::function##_backward_out(out, grad, size, input, factor(d), factor(h), factor(w));                           \
  }
ACLNN(UpsampleNearest1dV2, tensor(self), ints(size), single(w), out(out)) {
  at::upsample_nearest1d_out(out, self, size, factor(w));
}
ACLNN(UpsampleNearestExact1d, tensor(self), ints(size), real(w), out(out)) {
  at::_upsample_nearest_exact1d_out(out, self, size, factor(w));
}
ACLNN(UpsampleNearest2dV2, tensor(self), ints(size), single(h), single(w), out(out)) {
  at::upsample_nearest2d_out(out, self, size, factor(h), factor(w));
}
ACLNN(UpsampleNearestExact2d, tensor(self), ints(size), real(h), real(w), out(out)) {
  at::_upsample_nearest_exact2d_out(out, self, size, factor(h), factor(w));
}
NEAREST_1D_BACKWARD(UpsampleNearest1d, upsample_nearest1d)
NEAREST_1D_BACKWARD(UpsampleNearestExact1d, _upsample_nearest_exact1d)
NEAREST_2D_BACKWARD(UpsampleNearest2d, upsample_nearest2d)
NEAREST_2D_BACKWARD(UpsampleNearestExact2d, _upsample_nearest_exact2d)
NEAREST_3D(UpsampleNearest3d, upsample_nearest3d)
NEAREST_3D(UpsampleNearestExact3d, _upsample_nearest_exact3d)

#define PAD(op, function)                                                                                           \
  ACLNN(op, tensor(self), ints(padding), out(out)) { at::function##_out(out, self, padding); }                      \
  ACLNN(op##Backward, tensor(grad), tensor(self), ints(padding), out(out)) {                                        \
    at::function##_backward_out(out, grad, self, padding);                                                          \
  }
PAD(ReflectionPad1d, reflection_pad1d)
PAD(ReflectionPad2d, reflection_pad2d)
PAD(ReflectionPad3d, reflection_pad3d)
PAD(ReplicationPad1d, replication_pad1d)
PAD(ReplicationPad2d, replication_pad2d)
PAD(ReplicationPad3d, replication_pad3d)

#define GRID_SAMPLER(op, function)                                                                                  \
  ACLNN(op, tensor(self), tensor(grid), int64(interpolation), int64(padding), flag(align), out(out)) {              \
    out.copy_(at::function(self, grid, interpolation, padding, align));                                             \
  }                                                                                                                 \
  ACLNN(                                                                                                            \
      op##Backward, tensor(grad), tensor(self), tensor(grid), int64(interpolation), int64(padding), flag(align),    \
      bools(mask), out(grad_input), out(grad_grid)) {                                                               \
    const auto [dx, dgrid] =                                                                                        \
        at::function##_backward(grad, self, grid, interpolation, padding, align, {mask[0], mask[1]});               \
    if (mask[0]) {                                                                                                  \
      grad_input.copy_(dx);                                                                                         \
    }                                                                                                               \
    grad_grid.copy_(dgrid);                                                                                         \
  }
GRID_SAMPLER(GridSampler2D, grid_sampler_2d)
GRID_SAMPLER(GridSampler3D, grid_sampler_3d)
ACLNN(AffineGrid, tensor(theta), ints(size), flag(align), out(out)) {
  out.copy_(at::affine_grid_generator(theta, size, align));
}
