// Explainer: asks the worker's store about a prompt, wherever that store is.
//
// Thread safety: implementations are called from several threads at once.
#ifndef HEARTH_SERVICES_INFERENCE_EXPLAINER_H_
#define HEARTH_SERVICES_INFERENCE_EXPLAINER_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/cache_store.pb.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

class Explainer {
 public:
  // Called once, from any thread, possibly before Explain returns.
  using ExplainCallback = std::function<void(absl::Status, const v1::ExplainResponse&)>;

  virtual ~Explainer() = default;
  virtual void Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_EXPLAINER_H_
