#include "worker/model/invariant/invariant_part.h"

#include <set>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::Status CheckPart(const InvariantPart& part, const ModelConfig& config, uint64_t model) {
  const absl::Span<const int32_t> tokens = part.tokens;
  if (part.kv == nullptr || part.kv->model() != model) {
    return absl::InvalidArgumentError(
        part.kv == nullptr || part.kv->model() == 0
            ? "the Kv was moved from, or is not from NewKv: there is nothing to append to"
            : "the Kv is of another model: take one from this model's NewKv");
  }
  if (part.want > 0 && part.logits == nullptr) {
    return absl::InvalidArgumentError("logits are wanted, but there is no place for them");
  }
  if (tokens.empty() || part.want < 0 || static_cast<size_t>(part.want) > tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", tokens.size(), " tokens, logits of ", part.want, " of them"));
  }
  if (absl::Status known = CheckTokenIds(tokens, config); !known.ok()) return known;
  const int length = part.kv->length();
  if (tokens.size() > static_cast<size_t>(config.max_position_embeddings - length)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens.size(), " tokens behind ", length, " are more than the model's ",
                     config.max_position_embeddings, " positions (max_position_embeddings)"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareParts(absl::Span<const InvariantPart> parts, const ModelConfig& config,
                          uint64_t model) {
  if (parts.empty()) return absl::InvalidArgumentError("a step of no sequence");
  std::set<const void*> seen;
  int64_t want = 0;
  const auto in_part = [&](size_t i, const absl::Status& error) {
    if (parts.size() == 1) return error;
    absl::Status named(error.code(),
                       absl::StrCat("part ", i, " of ", parts.size(), ": ", error.message()));
    error.ForEachPayload([&named](absl::string_view type, const absl::Cord& payload) {
      named.SetPayload(type, payload);  // how much memory is lacking
    });
    return named;
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    if (absl::Status s = CheckPart(parts[i], config, model); !s.ok()) return in_part(i, s);
    want += parts[i].want;
    if (!seen.insert(parts[i].kv).second ||
        (parts[i].want > 0 && !seen.insert(parts[i].logits).second)) {
      return in_part(i, absl::InvalidArgumentError(
                            "its Kv, or its place for logits, is another part's: a step takes each "
                            "once"));
    }
  }
  if (want > kStepLogitsMax / config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "logits of ", want, " tokens, ", config.vocab_size, " each: a step gives at most ",
        kStepLogitsMax, " in all, so of ", kStepLogitsMax / config.vocab_size, " tokens"));
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::Status room = parts[i].kv->MakeRoom(static_cast<int>(parts[i].tokens.size()));
    if (room.ok()) continue;
    for (size_t made = 0; made < i; ++made) parts[made].kv->GiveBackRoom();
    return in_part(i, room);
  }
  return absl::OkStatus();
}

}  // namespace hearth
