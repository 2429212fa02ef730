#include "services/serving/json_reader.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/serving/canonical_json.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Whether the path of a value can contain `key` without quotes.
bool IsPlainKey(absl::string_view key) {
  return !key.empty() && key.size() <= 64 && std::all_of(key.begin(), key.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string NumberText(double number) {
  std::string text;
  AppendJsonNumber(number, &text);
  return absl::StrCat(absl::StripSuffix(text, ".0"));
}

// Blocks of at least this size are mapped, so that the system gets their memory back when they are
// freed. malloc would keep it: servers configure malloc so (KeepFreedMemory), and malloc_trim frees
// only the end of the first heap.
constexpr size_t kMappedBytes = size_t{1} << 20;

template <typename T>
struct MappedAllocator {
  using value_type = T;
  MappedAllocator() = default;
  template <typename Other>
  explicit MappedAllocator(const MappedAllocator<Other>&) {}

  T* allocate(size_t count) {
    const size_t bytes = count * sizeof(T);
    if (bytes < kMappedBytes) return std::allocator<T>().allocate(count);
    void* const block =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    return static_cast<T*>(block);
  }
  void deallocate(T* block, size_t count) {
    if (count * sizeof(T) < kMappedBytes) return std::allocator<T>().deallocate(block, count);
    munmap(block, count * sizeof(T));
  }
  bool operator==(const MappedAllocator&) const { return true; }
  bool operator!=(const MappedAllocator&) const { return false; }
};

template <typename T>
using MappedVector = std::vector<T, MappedAllocator<T>>;

}  // namespace

struct JsonNodes {
  enum class Type : uint8_t {
    kNull,
    kFalse,
    kTrue,
    kInteger,   // a negative integer, or 0 for the text -0
    kUnsigned,  // an integer of at least 0
    kFloat,
    kString,
    kList,
    kObject,
  };
  struct Node {
    Type type = Type::kNull;
    uint32_t size = 0;  // bytes of a string, elements of a list, or keys of an object
    union {
      int64_t integer;
      uint64_t number;
      double real;
      uint64_t text;  // offset of a string in `text`
      // list or object: index of the node after its last node; UINT32_MAX while it is open
      uint64_t end;
    };
  };
  static_assert(sizeof(Node) == 16, "json_reader.h gives the memory for this size of a node");

  MappedVector<Node> nodes;
  // a vector and not a string, because a string may reserve twice its size
  MappedVector<char> text;
  std::string name;

  bool is_container(uint32_t at) const {
    return nodes[at].type == Type::kList || nodes[at].type == Type::kObject;
  }
  uint32_t EndOf(uint32_t at) const {
    return is_container(at) ? static_cast<uint32_t>(nodes[at].end) : at + 1;
  }
  absl::string_view TextOf(uint32_t at) const {
    assert(nodes[at].type == Type::kString);
    assert(nodes[at].text + nodes[at].size <= text.size());
    return {text.data() + nodes[at].text, nodes[at].size};
  }
  // The layout of the text that WriteTo writes.
  struct Form {
    absl::string_view between_items, after_key;
    size_t most_bytes;  // stops soon after `out` has this length
  };
  std::string PathOf(uint32_t at) const;
  void WriteTo(uint32_t at, const Form& form, std::string* out) const;
};

// Walks down from the root: only errors need a path, so nodes have no link to their parent. Lists
// and objects may still be open. Ends the path soon after kMaxQuotedBytes, because its keys are the
// caller's text.
std::string JsonNodes::PathOf(uint32_t at) const {
  std::string path;
  for (uint32_t outer = 0; outer != at;) {
    if (path.size() > kMaxQuotedBytes) return path + "...";
    assert(outer < at && is_container(outer));
    const bool is_object = nodes[outer].type == Type::kObject;
    uint32_t item = outer + 1;
    size_t before = 0;
    while (EndOf(item + is_object) <= at) {
      item = EndOf(item + is_object);
      ++before;
    }
    if (!is_object) {
      absl::StrAppend(&path, "[", before, "]");
    } else if (IsPlainKey(TextOf(item))) {
      absl::StrAppend(&path, path.empty() ? "" : ".", TextOf(item));
    } else {
      absl::StrAppend(&path, "[", Quoted(TextOf(item), 64), "]");
    }
    outer = item + is_object;
  }
  return path;
}

// Appends a value as JSON text.
void JsonNodes::WriteTo(uint32_t at, const Form& form, std::string* out) const {
  const Node& node = nodes[at];
  switch (node.type) {
    case Type::kNull:
      out->append("null");
      return;
    case Type::kFalse:
    case Type::kTrue:
      out->append(node.type == Type::kTrue ? "true" : "false");
      return;
    case Type::kInteger:
      absl::StrAppend(out, node.integer == 0 ? "-" : "", node.integer);  // the parser reads -0 as 0
      return;
    case Type::kUnsigned:
      absl::StrAppend(out, node.number);
      return;
    case Type::kFloat:
      return AppendJsonNumber(node.real, out);
    case Type::kString:
      return AppendJsonString(TextOf(at).substr(0, form.most_bytes), out);
    case Type::kList:
    case Type::kObject:
      break;
  }
  const bool is_object = node.type == Type::kObject;
  out->push_back(is_object ? '{' : '[');
  for (uint32_t item = at + 1; item < node.end && out->size() < form.most_bytes;) {
    if (item > at + 1) absl::StrAppend(out, form.between_items);
    if (is_object) {
      WriteTo(item++, form, out);
      absl::StrAppend(out, form.after_key);
    }
    WriteTo(item, form, out);
    item = EndOf(item);
  }
  out->push_back(is_object ? '}' : ']');
}

namespace {

using Node = JsonNodes::Node;
using NodeType = JsonNodes::Type;

// An iterator over the text that records how far the parser has read.
class CountedBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountedBytes(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  CountedBytes& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  CountedBytes operator++(int) {
    const CountedBytes before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountedBytes& other) const { return at_ == other.at_; }
  bool operator!=(const CountedBytes& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Builds the nodes from nlohmann's parse events. If a method returns false, parsing ends and
// status() has the error.
class NodeBuilder {
 public:
  NodeBuilder(absl::string_view text, const JsonLimits& limits, JsonNodes* made)
      : limits_(limits), end_(text.data() + text.size()), begin_(text.data()), made_(made) {}

  // NOLINTBEGIN(readability-identifier-naming): the names are nlohmann's
  using Text = std::string;
  bool null() { return AddValue(NodeType::kNull); }
  bool boolean(bool value) { return AddValue(value ? NodeType::kTrue : NodeType::kFalse); }
  bool number_integer(int64_t value) {
    if (!AddValue(NodeType::kInteger)) return false;
    made_->nodes.back().integer = value;
    return true;
  }
  bool number_unsigned(uint64_t value) {
    if (!AddValue(NodeType::kUnsigned)) return false;
    made_->nodes.back().number = value;
    return true;
  }
  bool number_float(double value, const Text& /*text*/) {
    if (!AddValue(NodeType::kFloat)) return false;
    made_->nodes.back().real = value;
    return true;
  }
  bool string(const Text& value) { return AddValue(NodeType::kString) && AddText(value); }
  // JSON text has no binary values
  bool binary(const nlohmann::json::binary_t& /*value*/) { return false; }
  bool start_object(size_t /*size*/) { return Open(NodeType::kObject); }
  bool start_array(size_t /*size*/) { return Open(NodeType::kList); }
  bool key(const Text& value);
  bool end_object() { return HasUniqueKeys() && Close(); }
  bool end_array() { return Close(); }
  bool parse_error(size_t position, const Text& last_token,
                   const nlohmann::detail::exception& error);
  // NOLINTEND(readability-identifier-naming)

  const char** reached() { return &reached_; }
  const absl::Status& status() const { return status_; }

 private:
  bool Hold(uint64_t bytes) {
    if (!limits_.hold || limits_.hold(bytes)) return true;
    status_ = absl::UnavailableError(
        absl::StrCat(made_->name, ": the server has no memory left for it now; try again later"));
    return false;
  }
  // Sets the error "PATH: `why`, at byte N", with the path of the innermost open list or object.
  bool Fail(absl::string_view why) {
    const std::string path = open_.empty() ? "" : made_->PathOf(open_.back());
    status_ = absl::InvalidArgumentError(absl::StrCat(path.empty() ? made_->name : path, ": ", why,
                                                      ", at byte ", reached_ - begin_));
    return false;
  }
  bool AddNode(NodeType type);
  bool AddText(const Text& value);
  bool AddValue(NodeType type) {
    if (!open_.empty() && made_->nodes[open_.back()].type == NodeType::kList) {
      ++made_->nodes[open_.back()].size;
    }
    return AddNode(type);
  }
  bool Open(NodeType type);
  bool Close() {
    assert(!open_.empty() && made_->is_container(open_.back()));
    made_->nodes[open_.back()].end = made_->nodes.size();
    open_.pop_back();
    return true;
  }
  bool HasUniqueKeys();

  const JsonLimits& limits_;
  const char* const end_;
  const char* const begin_;
  JsonNodes* const made_;
  const char* reached_ = begin_;
  std::vector<uint32_t> open_;  // open containers, the outermost first
  std::vector<absl::string_view> keys_;
  absl::Status status_;
};

// Before a node is added, grows the nodes by at least half, at most to one node for every two bytes
// of the remaining text.
bool NodeBuilder::AddNode(NodeType type) {
  MappedVector<Node>& nodes = made_->nodes;
  if (nodes.size() == nodes.capacity()) {
    const size_t rest = static_cast<size_t>(end_ - reached_) / 2 + 2;
    const size_t more = std::min(std::max<size_t>(64, nodes.size() / 2), rest);
    if (!Hold(more * sizeof(Node))) return false;
    nodes.reserve(nodes.size() + more);
  }
  assert(nodes.size() < nodes.capacity());  // limits_.hold has counted the memory
  nodes.emplace_back();
  nodes.back().type = type;
  nodes.back().number = 0;
  return true;
}

// Limits the reserved bytes by the remaining text: a string is never longer than its JSON text.
bool NodeBuilder::AddText(const Text& value) {
  MappedVector<char>& text = made_->text;
  if (text.size() + value.size() > text.capacity()) {
    const size_t rest = static_cast<size_t>(end_ - reached_);
    const size_t more = value.size() + std::min(std::max<size_t>(64, text.size() / 2), rest);
    if (!Hold(more)) return false;
    text.reserve(text.size() + more);
  }
  assert(text.size() + value.size() <= text.capacity());
  made_->nodes.back().text = text.size();
  made_->nodes.back().size = static_cast<uint32_t>(value.size());
  text.insert(text.end(), value.begin(), value.end());
  return true;
}

bool NodeBuilder::Open(NodeType type) {
  if (open_.size() >= limits_.depth) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(made_->name, ": must have at most ", limits_.depth,
                     " nested levels; got more at byte ", reached_ - begin_));
    return false;
  }
  if (!AddValue(type)) return false;
  made_->nodes.back().end = std::numeric_limits<uint32_t>::max();
  open_.push_back(static_cast<uint32_t>(made_->nodes.size() - 1));
  return true;
}

bool NodeBuilder::key(const Text& value) {
  assert(!open_.empty() && made_->nodes[open_.back()].type == NodeType::kObject);
  if (made_->nodes[open_.back()].size >= limits_.keys) {
    return Fail(absl::StrCat("must have at most ", limits_.keys, " keys; got more"));
  }
  ++made_->nodes[open_.back()].size;
  return AddNode(NodeType::kString) && AddText(value);
}

bool NodeBuilder::HasUniqueKeys() {
  const uint32_t object = open_.back();
  keys_.clear();
  for (uint32_t at = object + 1; at < made_->nodes.size(); at = made_->EndOf(at + 1)) {
    keys_.push_back(made_->TextOf(at));
  }
  assert(keys_.size() == made_->nodes[object].size);
  std::sort(keys_.begin(), keys_.end());
  const auto twin = std::adjacent_find(keys_.begin(), keys_.end());
  if (twin == keys_.end()) return true;
  return Fail(absl::StrCat("must have each key once; got ", Quoted(*twin), " twice"));
}

bool NodeBuilder::parse_error(size_t /*position*/, const Text& /*last_token*/,
                              const nlohmann::detail::exception& error) {
  constexpr int kNumberOverflow = 406;
  // The message is "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error
  // while parsing value - invalid literal; last read: '...'". The quoted text may have megabytes.
  absl::string_view why = error.what();
  constexpr absl::string_view kBegin = "syntax error while parsing ";
  if (const size_t at = why.find(kBegin); at != why.npos) why.remove_prefix(at + kBegin.size());
  why = why.substr(0, std::min(why.find("; last read"), kMaxQuotedBytes));
  if (error.id == kNumberOverflow) why = "a number is out of range";
  status_ = absl::InvalidArgumentError(
      absl::StrCat(made_->name, ": must be JSON; at byte ", reached_ - begin_, ": ", why));
  return false;
}

}  // namespace

JsonDocument::JsonDocument(std::unique_ptr<const JsonNodes> nodes) : nodes_(std::move(nodes)) {}
JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;

absl::StatusOr<JsonDocument> JsonDocument::Parse(absl::string_view text, absl::string_view name,
                                                 const JsonLimits& limits) {
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": must have less than 4 GiB; got ", text.size(), " bytes"));
  }
  auto made = std::make_unique<JsonNodes>();
  made->name = std::string(name);
  NodeBuilder builder(text, limits, made.get());
  const CountedBytes begin(text.data(), builder.reached());
  const CountedBytes end(text.data() + text.size(), builder.reached());
  if (!nlohmann::json::sax_parse(begin, end, &builder)) {
    assert(!builder.status().ok());
    return builder.status();
  }
  assert(!made->nodes.empty() && made->EndOf(0) == made->nodes.size());
  return JsonDocument(std::move(made));
}

uint64_t JsonDocument::bytes() const {
  return nodes_->nodes.capacity() * sizeof(Node) + nodes_->text.capacity();
}

bool JsonValue::is_null() const { return nodes_->nodes[at_].type == NodeType::kNull; }
bool JsonValue::is_string() const { return nodes_->nodes[at_].type == NodeType::kString; }
bool JsonValue::is_list() const { return nodes_->nodes[at_].type == NodeType::kList; }
bool JsonValue::is_object() const { return nodes_->nodes[at_].type == NodeType::kObject; }
bool JsonValue::is_number() const {
  const NodeType type = nodes_->nodes[at_].type;
  return type == NodeType::kInteger || type == NodeType::kUnsigned || type == NodeType::kFloat;
}
bool JsonValue::Is(absl::string_view text) const {
  return is_string() && nodes_->TextOf(at_) == text;
}
bool JsonValue::IsBool(bool value) const {
  return nodes_->nodes[at_].type == (value ? NodeType::kTrue : NodeType::kFalse);
}
double JsonValue::AsDouble() const {
  const Node& node = nodes_->nodes[at_];
  if (node.type == NodeType::kFloat) return node.real;
  if (node.type == NodeType::kInteger) return static_cast<double>(node.integer);
  if (node.type == NodeType::kUnsigned) return static_cast<double>(node.number);
  return std::numeric_limits<double>::quiet_NaN();
}
size_t JsonValue::size() const { return is_list() || is_object() ? nodes_->nodes[at_].size : 0; }
uint32_t JsonValue::End() const { return nodes_->EndOf(at_); }

absl::StatusOr<bool> JsonValue::Bool() const {
  if (!IsBool(true) && !IsBool(false)) return Bad("true or false");
  return IsBool(true);
}

absl::StatusOr<absl::string_view> JsonValue::Text() const {
  if (!is_string()) return Bad("a string");
  return nodes_->TextOf(at_);
}

absl::StatusOr<uint64_t> JsonValue::Count(uint64_t least, uint64_t most) const {
  const Node& node = nodes_->nodes[at_];
  std::optional<uint64_t> count;
  if (node.type == NodeType::kUnsigned) count = node.number;
  // Every whole number up to 2^53 is exact in a double.
  if (node.type == NodeType::kFloat && node.real >= 0 && node.real <= 0x1p53 &&
      std::floor(node.real) == node.real) {
    count = static_cast<uint64_t>(node.real);
  }
  if (count.has_value() && *count >= least && *count <= most) return *count;
  return Bad(absl::StrCat("a whole number from ", least, " to ", most));
}

absl::StatusOr<double> JsonValue::Number(double least, double most) const {
  const double value = AsDouble();
  if (value >= least && value <= most) return value;
  return Bad(absl::StrCat("a number from ", NumberText(least), " to ", NumberText(most)));
}

absl::StatusOr<std::vector<uint32_t>> JsonValue::Ids(uint64_t below, size_t first,
                                                     size_t count) const {
  if (!is_list()) return Bad("a list of token ids");
  std::vector<uint32_t> ids;
  ids.reserve(std::min(size(), count));
  size_t index = 0;
  for (const JsonValue id : elements()) {
    if (index++ < first) continue;
    if (ids.size() == count) break;
    const Node& node = nodes_->nodes[id.at_];
    if (node.type != NodeType::kUnsigned || node.number >= below) {
      return id.Bad(absl::StrCat("a token id below ", below));
    }
    ids.push_back(static_cast<uint32_t>(node.number));
  }
  return ids;
}

absl::Status JsonValue::CheckObject() const {
  return is_object() ? absl::OkStatus() : Bad("an object");
}

std::optional<JsonValue> JsonValue::Find(absl::string_view name) const {
  for (const JsonValue field : fields()) {
    if (field.name() != name) continue;
    if (field.is_null()) break;
    return field;
  }
  return std::nullopt;
}

absl::StatusOr<JsonValue> JsonValue::FindNeeded(absl::string_view name) const {
  const std::optional<JsonValue> field = Find(name);
  if (field.has_value()) return *field;
  const bool is_vowel = absl::StrContains("aeiou", name.substr(0, 1));
  return Refuse(absl::StrCat("must have ", is_vowel ? "an " : "a ", name, "; got none"));
}

absl::string_view JsonValue::name() const { return nodes_->TextOf(at_ - 1); }

JsonValue::Range JsonValue::elements() const {
  return {nodes_, at_ + 1, is_list() ? End() : at_ + 1, 0};
}
JsonValue::Range JsonValue::fields() const {
  return {nodes_, at_ + 1, is_object() ? End() : at_ + 1, 1};
}

std::string JsonValue::Path() const { return nodes_->PathOf(at_); }

std::string JsonValue::Quote() const {
  if (is_string()) return Quoted(nodes_->TextOf(at_));
  std::string text;
  nodes_->WriteTo(at_, {",", ":", kMaxQuotedBytes + 1}, &text);
  if (text.size() <= kMaxQuotedBytes) return text;
  size_t end = kMaxQuotedBytes;
  while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

void JsonValue::Write(std::string* out, size_t most_bytes) const {
  nodes_->WriteTo(at_, {kJsonBetweenItems, kJsonAfterKey, most_bytes}, out);
}

absl::Status JsonValue::Bad(absl::string_view must) const {
  return Refuse(absl::StrCat("must be ", must, "; got ", Quote()));
}

absl::Status JsonValue::Refuse(absl::string_view why) const {
  const std::string path = Path();
  return absl::InvalidArgumentError(absl::StrCat(path.empty() ? nodes_->name : path, ": ", why));
}

std::optional<JsonValue> JsonFields::Find(absl::string_view name) const {
  if (!status_.ok()) return std::nullopt;
  const std::optional<JsonValue> found = object_.Find(name);
  if (!found.has_value() || is_absent_ == nullptr) return found;
  return is_absent_(place_, name, *found) ? std::nullopt : found;
}

bool JsonFields::Bool(absl::string_view name, bool* to) {
  const std::optional<JsonValue> found = Find(name);
  return found.has_value() && Take(found->Bool(), to);
}

bool JsonFields::Text(absl::string_view name, std::string* to, size_t most_bytes) {
  const std::optional<JsonValue> found = Find(name);
  if (!found.has_value()) return false;
  const absl::StatusOr<absl::string_view> text = found->Text();
  if (!text.ok() || text->size() <= most_bytes) return Take(text, to);
  Add(found->Bad(absl::StrCat("a string of at most ", most_bytes, " bytes")));
  return false;
}

bool JsonFields::Count(absl::string_view name, uint64_t least, uint64_t most, uint64_t* to) {
  const std::optional<JsonValue> found = Find(name);
  return found.has_value() && Take(found->Count(least, most), to);
}

bool JsonFields::Number(absl::string_view name, double least, double most, float* to) {
  const std::optional<JsonValue> found = Find(name);
  return found.has_value() && Take(found->Number(least, most), to);
}

}  // namespace hearth
