// Oracle: the answers of a worker without any cache, and the bytes of every possible slice.
//
// The prompts of all simulations are one list, and computing one is expensive: it is done once a
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

// A simulated client's prompt: its tokens, and where it may be continued.
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
  // One for the process: the model has no state.
  static Oracle& Get();

  const EngineOptions& options() const { return options_; }
  const Fingerprint& fingerprint() const { return engine_->fingerprint(); }
  const KvLayout& layout() const { return engine_->layout(); }
  static constexpr uint32_t kNewTokens = 2;

  const std::vector<SimPrompt>& prompts() const { return prompts_; }
  const Answer& AnswerTo(size_t prompt);
  // The slice of an object of `prompt`, or of any prompt that begins like it up to the object's
  // end.
  std::string SliceOf(size_t prompt, const ObjectId& id, uint32_t layer);

 private:
  Oracle();
  // [layer][position]: K then V of one token.
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
