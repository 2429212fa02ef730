#include "worker/text/template_form.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "proto/digest.h"

namespace hearth {
namespace {

// SHA-256 of forms that render like RenderChat, as tests with transformers showed: text-only chats,
// a system message of one part, with and without generation prompt. template_oracle.py repeats the
// tests with a template of each form: tests/data/gemma_chat.jinja and the changes to it in
// gemma_templates.json.
constexpr std::string_view kGemmaForms[] = {
    // Gemma 3's published template. Unsloth's template has the same form.
    "a8105c462bbdc32c986bafbea4cf3078f851f7e3adcec20609110923d3b43e85",
    // axolotl's template, which reads all parts of a system message.
    "478ba4679383a7dc60af8dd015b6c064f12962ead1d9c38ed14ba69ddf1c3b19",
    // Gemma 3n's template, which differs only for images and audio.
    "e53ebaab6a22143244de534d0cf9725f067194b45b917b82fdc84eea6fcaf3d0",
    // TRL's template for training, which marks answers.
    "92c1a7f5a383a093c5ca506ba943cdb1248db85d283dacf48488a97c2130565a",
    // The template of this project's tests, tests/data/gemma_chat.jinja.
    "9cf9aff272dfbf91e1e6f9b7280083803bd3af506dcb6c563ea471aca222126d",
};

struct Token {
  enum Kind { kName, kSign, kText } kind;
  std::string text;

  bool Is(std::string_view sign) const { return kind == kSign && text == sign; }
};
using Tokens = std::vector<Token>;

// A part of a template: the text between tags, or a tag.
struct Part {
  enum Kind { kData, kOutput, kStatement, kComment } kind;
  std::string data;
  Tokens tokens;
  // "-" at the tag's side: strip all white space there.
  bool strips_left = false, strips_right = false;
  // "+" at the tag's side: disables lstrip_blocks or trim_blocks there.
  bool keeps_left = false, keeps_right = false;
};

bool IsSpace(char c) { return absl::ascii_isspace(static_cast<unsigned char>(c)); }
bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

std::string WithUnixLineEnds(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\r') {
      out += text[at];
    } else if (at + 1 == text.size() || text[at + 1] != '\n') {
      out += '\n';
    }
  }
  return out;
}

// Returns the string literal at the front of `rest`, and removes it from `rest`. Returns nullopt if
// the literal has no end or an unsupported escape sequence.
std::optional<std::string> TakeLiteral(std::string_view* rest) {
  const char quote = (*rest)[0];
  std::string value;
  for (size_t at = 1; at < rest->size(); ++at) {
    char c = (*rest)[at];
    if (c == quote) {
      rest->remove_prefix(at + 1);
      return value;
    }
    if (c == '\\') {
      if (++at == rest->size()) break;
      c = (*rest)[at];
      if (c == 'n') {
        c = '\n';
      } else if (c == 't') {
        c = '\t';
      } else if (c != '\\' && c != '\'' && c != '"') {
        break;
      }
    }
    value += c;
  }
  return std::nullopt;
}

// Parses a tag. `rest` begins after the tag's opening "{{" or "{%". Returns false if the tag has no
// end.
bool TakeTag(std::string_view* rest, Part* part) {
  const std::string_view end = part->kind == Part::kOutput ? "}}" : "%}";
  if (!rest->empty() && ((*rest)[0] == '-' || (*rest)[0] == '+')) {
    ((*rest)[0] == '-' ? part->strips_left : part->keeps_left) = true;
    rest->remove_prefix(1);
  }
  int depth = 0;  // number of open brackets; "}}" ends the tag only at depth 0
  while (!rest->empty()) {
    const char c = (*rest)[0];
    const bool may_mark = c == '-' || (c == '+' && part->kind == Part::kStatement);
    const bool has_mark = depth == 0 && may_mark && rest->substr(1, 2) == end;
    if (has_mark) (c == '-' ? part->strips_right : part->keeps_right) = true;
    if (has_mark || (depth == 0 && rest->substr(0, 2) == end)) {
      rest->remove_prefix(has_mark ? 3 : 2);
      return true;
    }
    if (IsSpace(c)) {
      rest->remove_prefix(1);
      continue;
    }
    if (c == '"' || c == '\'') {
      std::optional<std::string> value = TakeLiteral(rest);
      if (!value.has_value()) return false;
      part->tokens.push_back({Token::kText, *std::move(value)});
      continue;
    }
    size_t size = 1;
    if (IsNameCharacter(c)) {
      while (size < rest->size() && IsNameCharacter((*rest)[size])) ++size;
    } else {
      constexpr std::string_view kPairs[] = {"==", "!=", "<=", ">=", "//", "**"};
      const bool is_pair =
          std::find(std::begin(kPairs), std::end(kPairs), rest->substr(0, 2)) != std::end(kPairs);
      size = is_pair ? 2 : 1;
      depth += (c == '(' || c == '[' || c == '{') - (c == ')' || c == ']' || c == '}');
    }
    part->tokens.push_back(
        {IsNameCharacter(c) ? Token::kName : Token::kSign, std::string(rest->substr(0, size))});
    rest->remove_prefix(size);
  }
  return false;
}

bool TakeComment(std::string_view* rest, Part* part) {
  const size_t end = rest->find("#}");
  if (end == rest->npos) return false;
  const std::string_view text = rest->substr(0, end);
  part->strips_left = !text.empty() && text.front() == '-';
  part->keeps_left = !text.empty() && text.front() == '+';
  part->strips_right = text.size() > 1 && text.back() == '-';
  part->keeps_right = text.size() > 1 && text.back() == '+';
  rest->remove_prefix(end + 2);
  return true;
}

std::optional<std::vector<Part>> Divide(std::string_view rest) {
  std::vector<Part> parts;
  while (!rest.empty()) {
    size_t begin = rest.find('{');
    while (begin != rest.npos && (begin + 1 == rest.size() ||
                                  std::string_view("{%#").find(rest[begin + 1]) == rest.npos)) {
      begin = rest.find('{', begin + 1);
    }
    parts.push_back({Part::kData, std::string(rest.substr(0, begin)), {}});
    if (begin == rest.npos) break;
    const char opening = rest[begin + 1];
    rest.remove_prefix(begin + 2);
    Part tag{opening == '{'   ? Part::kOutput
             : opening == '%' ? Part::kStatement
                              : Part::kComment,
             "",
             {}};
    const bool is_whole =
        tag.kind == Part::kComment ? TakeComment(&rest, &tag) : TakeTag(&rest, &tag);
    if (!is_whole) return std::nullopt;
    if (tag.kind == Part::kStatement && !tag.tokens.empty() && tag.tokens[0].text == "raw")
      return std::nullopt;
    parts.push_back(std::move(tag));
  }
  return parts;
}

// Applies Jinja's white space control to the text `data` between two tags. Either tag may be null.
void StripData(const Part* before, const Part* after, std::string* data) {
  size_t begin = 0, end = data->size();
  if (before != nullptr && before->strips_right) {
    while (begin < end && IsSpace((*data)[begin])) ++begin;
  } else if (before != nullptr && before->kind != Part::kOutput && !before->keeps_right &&
             begin < end && (*data)[begin] == '\n') {
    ++begin;
  }
  if (after != nullptr && after->strips_left) {
    while (end > begin && IsSpace((*data)[end - 1])) --end;
  } else if (after != nullptr && after->kind != Part::kOutput && !after->keeps_left) {
    size_t line = end;
    while (line > begin && ((*data)[line - 1] == ' ' || (*data)[line - 1] == '\t')) --line;
    // True if the tag after `data` is the first in its line or in the template.
    const bool is_line_start =
        line == begin ? before == nullptr || begin > 0 : (*data)[line - 1] == '\n';
    if (is_line_start) end = line;
  }
  *data = data->substr(begin, end - begin);
}

// Removes the texts of error messages, rewrites a['b'] as a.b, and removes parentheses around a
// whole condition.
Tokens Simplified(Tokens tokens) {
  Tokens out;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto is = [&](size_t at, std::string_view sign) {
      return at < tokens.size() && tokens[at].Is(sign);
    };
    const auto is_text = [&](size_t at) {
      return at < tokens.size() && tokens[at].kind == Token::kText;
    };
    const bool is_value = !out.empty() && (out.back().kind == Token::kName || out.back().Is("]") ||
                                           out.back().Is(")"));
    if (tokens[i].text == "raise_exception" && is(i + 1, "(") && is_text(i + 2) && is(i + 3, ")")) {
      out.push_back(tokens[i]);
      i += 3;
    } else if (is_value && is(i, "[") && is_text(i + 1) && is(i + 2, "]") &&
               std::all_of(tokens[i + 1].text.begin(), tokens[i + 1].text.end(), IsNameCharacter)) {
      out.push_back({Token::kSign, "."});
      out.push_back({Token::kName, tokens[i + 1].text});
      i += 2;
    } else {
      out.push_back(tokens[i]);
    }
  }
  const bool is_condition =
      out.size() > 3 && (out[0].text == "if" || out[0].text == "elif") && out[1].Is("(");
  int depth = 0;
  for (size_t i = 1; is_condition && i < out.size(); ++i) {
    depth += out[i].Is("(") - out[i].Is(")");
    if (depth > 0) continue;
    if (i + 1 == out.size()) {
      out.pop_back();
      out.erase(out.begin() + 1);
    }
    break;
  }
  return out;
}

// Appends `kind`, the length of `text`, and `text`. The length makes the form unambiguous.
void Append(char kind, std::string_view text, std::string* form) {
  absl::StrAppend(form, std::string(1, kind), text.size(), ":", std::string(text));
}

}  // namespace

std::string TemplateForm(std::string_view original) {
  std::string text = WithUnixLineEnds(original);
  if (!text.empty() && text.back() == '\n') text.pop_back();  // Jinja removes one final newline too
  std::optional<std::vector<Part>> parts = Divide(text);
  if (!parts.has_value()) return std::string(original);
  for (size_t i = 0; i < parts->size(); ++i) {
    if ((*parts)[i].kind != Part::kData) continue;
    StripData(i > 0 ? &(*parts)[i - 1] : nullptr,
              i + 1 < parts->size() ? &(*parts)[i + 1] : nullptr, &(*parts)[i].data);
  }
  std::string form, data;
  const auto flush = [&] {
    if (!data.empty()) Append('d', data, &form);
    data.clear();
  };
  for (Part& part : *parts) {
    const bool is_text = part.kind == Part::kOutput && part.tokens.size() == 1 &&
                         part.tokens[0].kind == Token::kText;
    if (part.kind == Part::kData || is_text) {
      data += is_text ? part.tokens[0].text : part.data;
      continue;
    }
    if (part.kind == Part::kComment) continue;
    flush();
    form += part.kind == Part::kOutput ? '{' : '%';
    for (const Token& token : Simplified(std::move(part.tokens)))
      Append(token.kind == Token::kText ? 's' : 't', token.text, &form);
  }
  flush();
  return form;
}

bool RendersAsGemma(std::string_view text) {
  std::string form = TemplateForm(text);
  // RenderChat writes "<bos>" for any bos_token of the model, so a literal "<bos>" is equivalent to
  // bos_token.
  constexpr std::string_view kLiteral = "d5:<bos>", kName = "{t9:bos_token";
  if (form.compare(0, kLiteral.size(), kLiteral) == 0) form.replace(0, kLiteral.size(), kName);
  const std::string digest = DigestHex(Sha256(form));
  return std::find(std::begin(kGemmaForms), std::end(kGemmaForms), std::string_view(digest)) !=
         std::end(kGemmaForms);
}

}  // namespace hearth
