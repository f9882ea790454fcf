// The arithmetic of the fake GPU: PyTorch's operators on CUDA tensors, computed by its own CPU
// kernels on the same memory, which is main memory. All else stays what it is: allocation, views,
// copies, autograd, streams. It is loaded by torch.ops.load_library.
//
// Unlike on a GPU, an operator waits for its stream, takes no workspace of its own, and cannot be
// captured in a graph.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy_native.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using c10::IValue;

// These launch no kernel, or have to do with where tensors are.
const std::set<std::string> kKept = {
    "aten::set_",
    "aten::resize_",
    "aten::_resize_output_",
    "aten::copy_",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::_fused_sdp_choice",
    "aten::_to_copy",
    "aten::_copy_from",
    "aten::_copy_from_and_resize",
    "aten::_local_scalar_dense",
    "aten::is_set_to",
    "aten::data",
    "aten::_has_same_storage_numel",
};

bool is_kept(const std::string& name) {
  return kKept.contains(name) || name.starts_with("aten::empty") ||
         name.starts_with("aten::_empty") || name.starts_with("aten::_efficientzero");
}

void synchronize(const Tensor& tensor) {
  c10::cuda::getCurrentCUDAStream(tensor.device().index()).synchronize();
}

// The same memory, as a tensor of the CPU.
Tensor on_cpu(const Tensor& tensor) {
  return at::for_blob(tensor.numel() > 0 ? tensor.data_ptr() : nullptr, tensor.sizes())
      .strides(tensor.strides())
      .options(tensor.options().device(at::kCPU))
      .target_device(at::kCPU)
      .make_tensor();
}

Tensor copied_to_gpu(const Tensor& cpu, at::Device device) {
  if (!cpu.defined()) return cpu;
  Tensor gpu = at::empty_strided(cpu.sizes(), cpu.strides(), cpu.options().device(device));
  if (cpu.numel() > 0) std::memcpy(gpu.data_ptr(), cpu.data_ptr(), gpu.storage().nbytes());
  return gpu;
}

// One call of an operator: its arguments become tensors of the CPU, and its results ones of the
// GPU again. Results go into the same memory; but one that may be resized is written elsewhere, and
// copied when its size is known.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op) {
    const std::string& overload = op.schema().overload_name();
    may_resize_ = overload.find("out") != std::string::npos ||
                  overload.find("grad_input") != std::string::npos;
  }

  void run(torch::jit::Stack* stack) {
    const auto& arguments = op_.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = arguments[i].alias_info();
      to_cpu((*stack)[first + i], alias != nullptr && alias->isWrite());
    }
    if (!device_) device_ = at::Device(at::kCUDA, c10::cuda::current_device());
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    if (may_resize_) copy_written();
    for (size_t i = stack->size() - op_.schema().returns().size(); i < stack->size(); ++i) {
      to_gpu((*stack)[i]);
    }
  }

 private:
  struct Written {
    Tensor gpu, cpu;
  };

  Tensor to_cpu(const Tensor& tensor, bool is_written) {
    if (!tensor.defined() || !tensor.is_cuda()) return tensor;
    if (waited_for_.insert(tensor.device().index()).second) synchronize(tensor);
    if (!device_) device_ = tensor.device();
    if (!is_written) return on_cpu(tensor);
    written_.push_back({tensor, may_resize_ ? on_cpu(tensor).clone() : on_cpu(tensor)});
    return written_.back().cpu;
  }

  // A kernel takes tensors of one GPU. Those of a list are looked at one by one.
  void need_one_device(const Tensor& tensor) const {
    if (!device_ || !tensor.defined() || !tensor.is_cuda()) return;
    TORCH_CHECK(tensor.device() == *device_, "Expected all tensors to be on the same device, but ",
                "found at least two devices, ", *device_, " and ", tensor.device(), "!");
  }

  void to_cpu(IValue& value, bool is_written) {
    if (value.isTensor()) {
      need_one_device(value.toTensor());
      value = to_cpu(value.toTensor(), is_written);
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(to_cpu(t, is_written));
      value = IValue(std::move(list));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> list;
      for (const auto& t : value.toOptionalTensorVector()) {
        list.push_back(t ? std::optional<Tensor>(to_cpu(*t, false)) : t);
      }
      value = IValue(std::move(list));
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      if (!device_) device_ = value.toDevice();
      value = IValue(at::Device(at::kCPU));
    } else if (value.isGenerator()) {
      value = IValue();  // the CPU's own
    }
  }

  void copy_written() const {
    for (const auto& [gpu, cpu] : written_) {
      if (gpu.sizes() != cpu.sizes()) gpu.resize_(cpu.sizes());
      if (gpu.numel() == 0) continue;
      Tensor target = on_cpu(gpu);
      at::native::copy_(target, cpu, false);
    }
  }

  Tensor to_gpu(const Tensor& tensor) const {
    for (const auto& [gpu, cpu] : written_) {
      if (cpu.is_same(tensor)) return gpu;
    }
    return copied_to_gpu(tensor, *device_);
  }

  void to_gpu(IValue& value) const {
    if (value.isTensor()) {
      value = to_gpu(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(to_gpu(t));
      value = IValue(std::move(list));
    }
  }

  const c10::OperatorHandle& op_;
  bool may_resize_;
  std::optional<at::Device> device_;  // of what is made
  std::set<c10::DeviceIndex> waited_for_;
  std::vector<Written> written_;
};

void compute(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op).run(stack); }

bool are_alike(const Tensor& a, const Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && a.is_non_overlapping_and_dense() &&
         b.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Uses a copy engine where PyTorch would; otherwise does what a kernel would do.
Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (are_alike(self, source)) return at::native::copy_(self, source, non_blocking);
  if (self.is_cuda()) synchronize(self);
  if (source.is_cuda()) synchronize(source);
  Tensor target = self.is_cuda() ? on_cpu(self) : self;
  at::native::copy_(target, source.is_cuda() ? on_cpu(source) : source, false);
  return self;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

bool is_replaced(const c10::OperatorName& name) {
  if (!name.name.starts_with("aten::") || is_kept(name.name)) return false;
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  return op && op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
         op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) && !is_view(op->schema());
}

struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}  // that kernels are replaced
};

struct Installed {
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__};

  Installed() {
    Quiet handler;
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);
    for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!is_replaced(name)) continue;
      const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
      library.impl((name.name.substr(std::strlen("aten::")) + overload).c_str(),
                   torch::CppFunction::makeFromBoxedFunction<&compute>());
    }
    library.impl("copy_", TORCH_FN(copy_));
  }
};
Installed installed;

}  // namespace
