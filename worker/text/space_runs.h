// SpaceRuns: which tokens a run of spaces becomes.
//
// Gemma has a piece for each run of 2 to 31 spaces. SentencePiece takes the longest piece first,
// transformers merges neighbours pair by pair; they agree up to 31 spaces and differ beyond (of 32,
// SentencePiece makes 31 + 1, transformers 16 + 16). Here it is done as in transformers.
// Standard library only. Thread safety: const after construction.
#ifndef HEARTH_WORKER_TEXT_SPACE_RUNS_H_
#define HEARTH_WORKER_TEXT_SPACE_RUNS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace hearth {

class SpaceRuns {
 public:
  SpaceRuns() = default;
  // The never-merged pieces made of spaces only: length in spaces -> id.
  explicit SpaceRuns(std::map<size_t, int32_t> pieces);

  // Without a piece for two spaces, runs are ordinary text.
  bool empty() const { return id_by_length_.count(2) == 0; }
  // The spaces of the longest piece; at least 1.
  size_t longest() const { return id_by_length_.empty() ? 1 : id_by_length_.rbegin()->first; }
  // Appends the tokens of `count` >= 2 spaces. Returns how many spaces at the end found no partner
  // (0 or 1): they belong to what follows.
  size_t Append(size_t count, std::vector<int32_t>* ids) const;

 private:
  std::map<size_t, int32_t> id_by_length_;
  std::vector<size_t> lengths_by_id_;  // the order in which merges are tried
};

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_SPACE_RUNS_H_
