// Oracle: the answers of a worker without a cache, and the bytes of every possible slice.
//
// All simulations share one list of prompts. Results are expensive, so each is computed once per
// process. Thread safety: none.
#ifndef HEARTH_TESTS_SIMULATION_ORACLE_H_
#define HEARTH_TESTS_SIMULATION_ORACLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "proto/kv_layout.h"
#include "worker/engine/engine.h"
#include "worker/model/torch/gemma.h"

namespace hearth {

// A simulated client's prompt: its tokens and its breakpoints.
struct SimPrompt {
  std::vector<int32_t> tokens;
  std::vector<uint32_t> cuts;
};

class Oracle {
 public:
  struct Answer {
    Digest first_logits{};
    std::vector<int32_t> tokens;
  };
  // One per process, because the model has no state.
  static Oracle& Get();

  const EngineOptions& options() const { return options_; }
  const Fingerprint& fingerprint() const { return engine_->fingerprint(); }
  const KvLayout& layout() const { return engine_->layout(); }
  static constexpr uint32_t kNewTokens = 2;

  const std::vector<SimPrompt>& prompts() const { return prompts_; }
  const Answer& AnswerTo(size_t prompt);
  // Returns a slice of an object of `prompt`. Prompts with the same tokens up to the object's end
  // have the same slice.
  std::string SliceOf(size_t prompt, const ObjectId& id, uint32_t layer);

 private:
  Oracle();
  // [layer][position]: bytes of K, then V, of one token.
  using Rows = std::vector<std::vector<std::string>>;
  const Rows& RowsOf(size_t prompt);

  EngineOptions options_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Gemma> gemma_;
  std::vector<SimPrompt> prompts_;
  std::map<size_t, Answer> answers_;
  std::map<size_t, Rows> rows_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_ORACLE_H_
