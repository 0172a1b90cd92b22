// Many elements to one, or a running total: sums, extremes, moments, scans.
#include "op.h"

#include <ATen/Functions.h>

ACLNN(ReduceSum, tensor(self), ints(dims), flag(keepdim), dtype(type), out(out)) {
  at::sum_out(out, self, dims, keepdim, type);
}
ACLNN(ReduceNansum, tensor(self), ints(dims), flag(keepdim), dtype(type), out(out)) {
  at::nansum_out(out, self, dims, keepdim, type);
}
ACLNN(Mean, tensor(self), ints(dims), flag(keepdim), dtype(type), out(out)) {
  at::mean_out(out, self, dims, keepdim, type);
}
ACLNN(Prod, tensor(self), dtype(type), out(out)) { at::prod_out(out, self, type); }
ACLNN(ProdDim, tensor(self), int64(dim), flag(keepdim), dtype(type), out(out)) {
  at::prod_out(out, self, dim, keepdim, type);
}
ACLNN(Trace, tensor(self), out(out)) { at::trace_out(out, self); }

ACLNN(Max, tensor(self), out(out)) { at::max_out(out, self); }
ACLNN(Min, tensor(self), out(out)) { at::min_out(out, self); }
ACLNN(MaxDim, tensor(self), int64(dim), flag(keepdim), out(out), out(indices)) {
  at::max_out(out, indices, self, dim, keepdim);
}
ACLNN(MinDim, tensor(self), int64(dim), flag(keepdim), out(out), out(indices)) {
  at::min_out(out, indices, self, dim, keepdim);
}
ACLNN(Amax, tensor(self), ints(dims), flag(keepdim), out(out)) { at::amax_out(out, self, dims, keepdim); }
ACLNN(Amin, tensor(self), ints(dims), flag(keepdim), out(out)) { at::amin_out(out, self, dims, keepdim); }
ACLNN(Aminmax, tensor(self), ints(dims), flag(keepdim), out(low), out(high)) {
  at::amin_out(low, self, dims, keepdim);
  at::amax_out(high, self, dims, keepdim);
}
ACLNN(AminmaxAll, tensor(self), out(low), out(high)) { at::aminmax_out(low, high, self); }
ACLNN(AminmaxDim, tensor(self), int64(dim), flag(keepdim), out(low), out(high)) {
  at::aminmax_out(low, high, self, dim, keepdim);
}
ACLNN(ArgMax, tensor(self), int64(dim), flag(keepdim), out(out)) { at::argmax_out(out, self, dim, keepdim); }
ACLNN(ArgMin, tensor(self), int64(dim), flag(keepdim), out(out)) { at::argmin_out(out, self, dim, keepdim); }
ACLNN(Median, tensor(self), out(out)) { out.copy_(at::median(self)); }
ACLNN(NanMedian, tensor(self), out(out)) { out.copy_(at::nanmedian(self)); }
ACLNN(MedianDim, tensor(self), int64(dim), flag(keepdim), out(out), out(indices)) {
  at::median_out(out, indices, self, dim, keepdim);
}
ACLNN(NanMedianDim, tensor(self), int64(dim), flag(keepdim), out(out), out(indices)) {
  at::nanmedian_out(out, indices, self, dim, keepdim);
}

// No dimension named: all of them.
ACLNN(All, tensor(self), ints(dims), flag(keepdim), out(out)) {
  dims.empty() ? at::all_out(out, self, at::OptionalIntArrayRef(), keepdim) : at::all_out(out, self, dims, keepdim);
}
ACLNN(Any, tensor(self), ints(dims), flag(keepdim), out(out)) {
  dims.empty() ? at::any_out(out, self, at::OptionalIntArrayRef(), keepdim) : at::any_out(out, self, dims, keepdim);
}
ACLNN(Equal, tensor(self), tensor(other), out(out)) { out.fill_(at::equal(self, other)); }

// As a Scalar: an integer would choose the overload that takes "unbiased", a bool.
ACLNN(Std, tensor(self), ints(dims), int64(correction), flag(keepdim), out(out)) {
  at::std_out(out, self, dims, at::Scalar(correction), keepdim);
}
ACLNN(VarCorrection, tensor(self), ints(dims), int64(correction), flag(keepdim), out(out)) {
  at::var_out(out, self, dims, at::Scalar(correction), keepdim);
}
ACLNN(VarMean, tensor(self), ints(dims), int64(correction), flag(keepdim), out(var), out(mean)) {
  at::var_mean_out(var, mean, self, dims, at::Scalar(correction), keepdim);
}
ACLNN(StdMeanCorrection, tensor(self), ints(dims), int64(correction), flag(keepdim), out(std), out(mean)) {
  at::std_mean_out(std, mean, self, dims, at::Scalar(correction), keepdim);
}
ACLNN(Norm, tensor(self), scalar(p), ints(dims), flag(keepdim), out(out)) {
  at::norm_out(out, self, p, dims, keepdim);
}
ACLNN(LinalgVectorNorm, tensor(self), scalar(ord), ints(dims), flag(keepdim), dtype(type), out(out)) {
  const auto over = dims.empty() ? at::OptionalIntArrayRef() : at::OptionalIntArrayRef(dims);
  at::linalg_vector_norm_out(out, self, ord, over, keepdim, type);
}
ACLNN(Renorm, tensor(self), scalar(p), int64(dim), scalar(limit), out(out)) {
  at::renorm_out(out, self, p, dim, limit);
}
ACLNN(InplaceRenorm, inout(self), scalar(p), int64(dim), scalar(limit)) { self.renorm_(p, dim, limit); }
ACLNN(LogSumExp, tensor(self), ints(dims), flag(keepdim), out(out)) {
  at::logsumexp_out(out, self, dims, keepdim);
}
ACLNN(Histc, tensor(self), int64(bins), scalar(low), scalar(high), out(out)) {
  // The CPU has no kernel for integers. Double holds them exactly.
  const bool integers = at::isIntegralType(self.scalar_type(), false);
  out.copy_(at::histc(integers ? self.to(at::kDouble) : self, bins, low, high));
}
ACLNN(Bincount, tensor(self), tensor(weights), int64(minlength), out(out)) {
  out.copy_(at::bincount(self, weights.defined() ? std::optional(weights) : std::nullopt, minlength));
}

ACLNN(Cumsum, tensor(self), int64(dim), dtype(type), out(out)) { at::cumsum_out(out, self, dim, type); }
ACLNN(Cumprod, tensor(self), scalar(dim), dtype(type), out(out)) {
  at::cumprod_out(out, self, dim.toLong(), type);
}
ACLNN(Cummax, tensor(self), int64(dim), out(out), out(indices)) { at::cummax_out(out, indices, self, dim); }
ACLNN(Cummin, tensor(self), int64(dim), out(out), out(indices)) { at::cummin_out(out, indices, self, dim); }
