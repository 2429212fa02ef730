// The models and prompts of store_client_main.cc. Pure functions.
#ifndef HEARTH_TESTS_SERVICES_STORE_STORE_CLIENT_H_
#define HEARTH_TESTS_SERVICES_STORE_STORE_CLIENT_H_

#include "proto/cache_store.pb.h"
#include "services/rpc/proto_conversion.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {

// Returns the model of tiny_snapshot.h; if `is_wide`, a model whose slices have 128 KiB and so are
// in shared memory.
inline Fingerprint ClientModel(bool is_wide) {
  std::vector<FingerprintField> fields = TinyFields();
  for (FingerprintField& field : fields) {
    if (is_wide && field.name == "head_dim") field.value = uint64_t{2048};
  }
  return Fingerprint::Create(fields).value();
}

// Returns the prompt of tiny_snapshot.h.
inline v1::Prefix ClientPrefix(const Fingerprint& model) {
  const Manifest manifest = TinyManifest();
  v1::Prefix prefix;
  ToProto(model, prefix.mutable_fingerprint());
  for (const uint32_t id : manifest.token_ids) prefix.add_token_ids(id);
  for (const uint32_t cut : manifest.cuts) prefix.add_cuts(cut);
  return prefix;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SERVICES_STORE_STORE_CLIENT_H_
