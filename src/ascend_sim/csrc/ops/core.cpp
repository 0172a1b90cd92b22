#include "op.h"
#include <ATen/ATen.h>
ACLNN(Add, tensor(self), tensor(other), scalar(alpha), tensor(out)) { at::add_out(out, self, other, alpha); }
ACLNN(InplaceCopy, tensor(self), tensor(src)) { self.copy_(src); }
