// Oracle: the answers of a worker without a cache, and the right bytes of every possible slice.
//
// All simulations share one list of prompts. Results are slow to compute, so each result is
// computed once per process. Thread safety: none.
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

// A prompt of simulated clients: its tokens and its breakpoints.
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
  // Returns the oracle of this process. One is enough, because the model has no state.
  static Oracle& Get();

  const EngineOptions& options() const { return options_; }
  const Fingerprint& fingerprint() const { return engine_->fingerprint(); }
  const KvLayout& layout() const { return engine_->layout(); }
  static constexpr uint32_t kNewTokens = 2;

  const std::vector<SimPrompt>& prompts() const { return prompts_; }
  const Answer& AnswerTo(size_t prompt);
  // Returns the bytes of a slice of an object of `prompt`. Two prompts with the same tokens up to
  // the object's end have the same slice.
  std::string SliceOf(size_t prompt, const ObjectId& id, uint32_t layer);

 private:
  Oracle();
  // [layer][position]: the bytes of the key and then the value of one token.
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
