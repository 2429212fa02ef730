#include "services/openai/token_log.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::string_view TextOf(int32_t id, const TokenBytes& text_of) {
  return text_of ? text_of(id) : absl::string_view();
}

}  // namespace

void TokenLog::Add(const v1::TokenLogprob& token, const Top& top, size_t text_offset) {
  for (const v1::TokenLogprob& one : top) {
    top_.emplace_back(static_cast<int32_t>(one.id()), one.logprob());
  }
  tokens_.push_back(
      {static_cast<int32_t>(token.id()), token.logprob(), true, top_.size(), text_offset});
}

void TokenLog::AddFirst(int32_t id, size_t text_offset) {
  tokens_.push_back({id, 0, false, top_.size(), text_offset});
}

void TokenLog::WriteEntry(int32_t id, float logprob, const TokenBytes& text_of,
                          HeldText* out) const {
  const absl::string_view text = TextOf(id, text_of);
  out->Append("{\"token\":");
  out->AppendString(text);
  out->Append(",\"logprob\":");
  out->AppendNumber(logprob);
  out->Append(",\"bytes\":[");
  for (size_t i = 0; i < text.size(); ++i) {
    out->Append(absl::StrCat(i == 0 ? "" : ",", static_cast<unsigned char>(text[i])));
  }
  out->Append("]");
}

void TokenLog::WriteContent(const TokenBytes& text_of, HeldText* out) const {
  for (size_t i = 0; i < tokens_.size() && out->fits(); ++i) {
    if (i > 0) out->Append(",");
    WriteEntry(tokens_[i].id, tokens_[i].logprob, text_of, out);
    out->Append(",\"top_logprobs\":[");
    for (size_t at = TopBegin(i); at < tokens_[i].top_end; ++at) {
      if (at > TopBegin(i)) out->Append(",");
      WriteEntry(top_[at].first, top_[at].second, text_of, out);
      out->Append("}");
    }
    out->Append("]}");
  }
}

void TokenLog::WriteTop(size_t i, const TokenBytes& text_of, HeldText* out) const {
  if (!tokens_[i].has_logprob) return out->Append("null");
  out->Append("{");
  bool is_first = true;
  for (size_t at = TopBegin(i); at < tokens_[i].top_end; ++at) {
    const absl::string_view text = TextOf(top_[at].first, text_of);
    // If two tokens have one text, as a byte and a piece may, the less likely one counts, as it
    // does for readers of an object with both.
    bool is_twin = false;
    for (size_t later = at + 1; later < tokens_[i].top_end && !is_twin; ++later) {
      is_twin = TextOf(top_[later].first, text_of) == text;
    }
    if (is_twin) continue;
    if (!is_first) out->Append(",");
    is_first = false;
    out->AppendString(text);
    out->Append(":");
    out->AppendNumber(top_[at].second);
  }
  out->Append("}");
}

void WriteFlat(const std::vector<const TokenLog*>& logs, const TokenBytes& text_of, HeldText* out) {
  const auto list = [&](absl::string_view name, const auto& write) {
    out->Append(name);
    bool is_first = true;
    for (const TokenLog* const log : logs) {
      for (size_t i = 0; i < log->tokens_.size() && out->fits(); ++i) {
        if (!is_first) out->Append(",");
        is_first = false;
        write(*log, i);
      }
    }
  };
  list("{\"tokens\":[", [&](const TokenLog& log, size_t i) {
    out->AppendString(TextOf(log.tokens_[i].id, text_of));
  });
  list("],\"token_logprobs\":[", [&](const TokenLog& log, size_t i) {
    if (!log.tokens_[i].has_logprob) return out->Append("null");
    out->AppendNumber(log.tokens_[i].logprob);
  });
  list("],\"top_logprobs\":[",
       [&](const TokenLog& log, size_t i) { log.WriteTop(i, text_of, out); });
  list("],\"text_offset\":[", [&](const TokenLog& log, size_t i) {
    out->Append(absl::StrCat(log.tokens_[i].text_offset));
  });
  out->Append("]}");
}

}  // namespace hearth
