// The saved inference for tests of the state format: the tokens of the tiny snapshot and one more
// token. Pure functions.
#ifndef HEARTH_TESTS_PROTO_TINY_STATE_H_
#define HEARTH_TESTS_PROTO_TINY_STATE_H_

#include <string>

#include "proto/state_format.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {

inline SavedState TinyState() {
  SavedState state;
  state.request_id = "7712d13f4371680c";
  state.adapter = "legal";
  state.token_ids = TinyManifest().token_ids;
  state.token_ids.push_back(40);
  state.prompt_tokens = 17;
  state.drawn = 4;
  state.temperature = 0.7F;
  state.top_k = 40;
  state.top_p = 0.95F;
  state.seed = UINT64_MAX;
  return state;
}

inline std::string TinyStateFile() {
  const std::string snapshot = TinyFile();
  return BuildStateHeader(TinyState(), snapshot.size()).value() + snapshot;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_PROTO_TINY_STATE_H_
