#include "services/openai/token_log.h"

#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hearth {

absl::string_view TokenText(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr || id < 0 || id >= tokenizer->size()) return "";
  const std::string_view bytes = tokenizer->TokenBytes(id);
  return {bytes.data(), bytes.size()};
}

namespace {

// Returns a name that is different for each token: the token's text; "bytes:\\xe2" for a byte, as
// in OpenAI's API; or "token_id:7" for a token without text, as in vLLM.
std::string NameOf(const Tokenizer* tokenizer, int32_t id) {
  const absl::string_view text = TokenText(tokenizer, id);
  if (text.empty()) return absl::StrCat("token_id:", id);
  if (text.size() > 1) return std::string(text);
  const auto byte = static_cast<unsigned char>(text[0]);
  if (tokenizer->FindPiece(absl::StrFormat("<0x%02X>", byte)) != id) return std::string(text);
  return absl::StrFormat("bytes:\\x%02x", byte);
}

}  // namespace

void TokenLog::Add(const SampledToken& token, size_t text_offset, bool has_logprob) {
  top_.insert(top_.end(), token.top.begin(), token.top.end());
  assert(tokens_.empty() || tokens_.back().top_end <= top_.size());
  assert(tokens_.empty() || tokens_.back().text_offset <= text_offset);
  tokens_.push_back({token.id, token.logprob, has_logprob, top_.size(), text_offset});
}

void TokenLog::WriteEntry(int32_t id, float logprob, const Tokenizer* tokenizer,
                          HeldText* out) const {
  const absl::string_view text = TokenText(tokenizer, id);
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

void TokenLog::WriteContent(const Tokenizer* tokenizer, HeldText* out) const {
  for (size_t i = 0; i < tokens_.size() && out->fits(); ++i) {
    if (i > 0) out->Append(",");
    WriteEntry(tokens_[i].id, tokens_[i].logprob, tokenizer, out);
    out->Append(",\"top_logprobs\":[");
    for (size_t at = TopBegin(i); at < tokens_[i].top_end; ++at) {
      if (at > TopBegin(i)) out->Append(",");
      WriteEntry(top_[at].id, top_[at].logprob, tokenizer, out);
      out->Append("}");
    }
    out->Append("]}");
  }
}

void TokenLog::WriteTop(size_t i, const Tokenizer* tokenizer, HeldText* out) const {
  if (!tokens_[i].has_logprob) return out->Append("null");
  out->Append("{");
  for (size_t at = TopBegin(i); at < tokens_[i].top_end; ++at) {
    if (at > TopBegin(i)) out->Append(",");
    out->AppendString(NameOf(tokenizer, top_[at].id));
    out->Append(":");
    out->AppendNumber(top_[at].logprob);
  }
  out->Append("}");
}

void WriteFlat(const std::vector<const TokenLog*>& logs, const Tokenizer* tokenizer,
               HeldText* out) {
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
    out->AppendString(NameOf(tokenizer, log.tokens_[i].id));
  });
  list("],\"token_logprobs\":[", [&](const TokenLog& log, size_t i) {
    if (!log.tokens_[i].has_logprob) return out->Append("null");
    out->AppendNumber(log.tokens_[i].logprob);
  });
  list("],\"top_logprobs\":[",
       [&](const TokenLog& log, size_t i) { log.WriteTop(i, tokenizer, out); });
  list("],\"text_offset\":[", [&](const TokenLog& log, size_t i) {
    out->Append(absl::StrCat(log.tokens_[i].text_offset));
  });
  out->Append("]}");
}

}  // namespace hearth
