// ModelFingerprints: those of a worker's prefixes: of its model alone, and of the model with each
// adapter, whose keys and values have a fingerprint of their own.
//
// Thread safety: constant.
#ifndef HEARTH_SERVICES_INFERENCE_MODEL_FINGERPRINTS_H_
#define HEARTH_SERVICES_INFERENCE_MODEL_FINGERPRINTS_H_

#include <map>
#include <string>

#include "proto/fingerprint.h"
#include "worker/engine/engine.h"

namespace hearth {

class ModelFingerprints {
 public:
  ModelFingerprints(const Fingerprint& model)  // NOLINT(google-explicit-constructor)
      : by_adapter_{{"", model}} {}
  explicit ModelFingerprints(const Engine& engine) : ModelFingerprints(engine.fingerprint()) {
    for (const AdapterInfo& adapter : engine.adapters()) Add(adapter.name, adapter.fingerprint);
  }
  void Add(const std::string& adapter, const Fingerprint& fingerprint) {
    by_adapter_.emplace(adapter, fingerprint);
  }
  // REQUIRES: there is such an adapter, which the engine has checked; "": none.
  const Fingerprint& Of(const std::string& adapter) const { return by_adapter_.at(adapter); }

 private:
  std::map<std::string, Fingerprint> by_adapter_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_MODEL_FINGERPRINTS_H_
