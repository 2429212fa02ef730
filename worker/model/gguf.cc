#include "worker/model/gguf.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "worker/model/model_file.h"

namespace hearth {
namespace {

constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
// A Gemma 3 header has 16 MB, half of it tokenizer merges.
constexpr uint64_t kMaxGgufHeaderBytes = uint64_t{128} << 20;
// Entries: fields or tensors; Gemma 3 27B with its vision tower has 1,300. Short list: booleans,
// one for each layer. Long list: vocabulary pieces or merges; Gemma 3 has 262,144 pieces and
// 514,906 merges. Text: one string.
constexpr uint64_t kMaxEntries = 1 << 15, kMaxShortList = 1 << 10, kMaxLongList = 1 << 20;
constexpr uint64_t kMaxTextBytes = 1 << 20, kMaxNameBytes = 256;
constexpr char kEndsEarly[] = "the header is truncated, or longer than 128 MiB";
constexpr char kChatTemplate[] = "tokenizer.chat_template";
constexpr uint32_t kMaxGgufRank = 4;

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kText,
  kList,
  kU64,
  kI64,
  kF64
};
// The minimum bytes of a value, by ValueType.
constexpr uint64_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

// The names of the tensor types, by the type's number in the file.
struct TypeName {
  uint32_t number;
  const char* name;
};
constexpr TypeName kTypes[] = {
    {0, "F32"},     {1, "F16"},    {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},     {7, "Q5_1"},
    {8, "Q8_0"},    {9, "Q8_1"},   {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},    {13, "Q5_K"},
    {14, "Q6_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {28, "F64"},     {29, "IQ1_M"},
    {30, "BF16"},   {34, "TQ1_0"}, {35, "TQ2_0"},   {39, "MXFP4"}};

constexpr std::pair<const char*, const char*> kNames[] = {
    {"token_embd", "embed_tokens"},
    {"output_norm", "norm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_norm", "input_layernorm"},
    {"post_attention_norm", "post_attention_layernorm"},
    {"ffn_norm", "pre_feedforward_layernorm"},
    {"post_ffw_norm", "post_feedforward_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};

// "blk.3.attn_q.weight" becomes "model.layers.3.self_attn.q_proj.weight".
std::string HuggingFaceName(const std::string& name) {
  if (name == "output.weight") return "lm_head.weight";
  std::vector<std::string> parts = absl::StrSplit(name, '.');
  std::string prefix = "model.";
  if (parts.size() == 4 && parts[0] == "blk") {
    absl::StrAppend(&prefix, "layers.", parts[1], ".");
    parts.erase(parts.begin(), parts.begin() + 2);
  }
  for (const auto& [theirs, ours] : kNames) {
    if (parts.size() == 2 && parts[0] == theirs) return absl::StrCat(prefix, ours, ".", parts[1]);
  }
  return name;
}

// Reads values sequentially from the beginning of a file. After the first error every value is
// empty.
class HeaderReader {
 public:
  // `vocabulary`: receives the lists of the tokenizer; if null, these lists are skipped.
  HeaderReader(const TensorFile& file, GgufVocabulary* vocabulary)
      : fd_(file.fd), size_(static_cast<uint64_t>(file.opened.st_size)), vocabulary_(vocabulary) {}

  bool ok() const { return why_.empty(); }
  const std::string& why() const { return why_; }
  uint64_t at() const { return at_; }
  uint64_t left() const { return std::min(size_, kMaxGgufHeaderBytes) - at_; }
  void Fail(const std::string& why) {
    if (ok()) why_ = why;
  }

  template <typename T>
  T Number() {
    T value{};
    Take(sizeof(value), &value);
    return value;
  }
  // Returns the first `kept` bytes of a text. Fails if the text has more than `most` bytes.
  std::string Text(uint64_t most, uint64_t kept = std::numeric_limits<uint64_t>::max()) {
    const uint64_t bytes = TextBytes(most);
    std::string text(std::min(bytes, kept), '\0');
    Take(text.size(), text.data());
    Skip(bytes - text.size());
    return text;
  }
  // Returns the name of a field or tensor. Fails if the name is not safe to print in a message.
  std::string Name() {
    std::string name = Text(kMaxNameBytes);
    const auto is_odd = [](char c) { return c <= ' ' || c > '~'; };
    if (name.empty() || std::any_of(name.begin(), name.end(), is_odd)) {
      Fail("the name of a field or tensor must be printable ASCII without spaces");
    }
    return ok() ? name : "";
  }
  GgufValue Value(const std::string& name, uint32_t type) {
    if (type == kList) return List(name);
    if (type > kF64) {
      Fail(absl::StrCat("field ", name, ": unknown value type ", type));
      return {};
    }
    if (type != kText) return Single(type);
    const bool is_whole = vocabulary_ != nullptr && name == kChatTemplate;
    return Text(kMaxTextBytes, is_whole ? kMaxTextBytes : kMaxKeptText);
  }

 private:
  void Take(size_t bytes, void* to) {
    if (!ok()) return;
    if (bytes > left()) return Fail(kEndsEarly);
    for (char* out = static_cast<char*>(to); bytes > 0;) {
      if (at_ < buffer_at_ || at_ >= buffer_at_ + buffer_.size()) {
        buffer_at_ = at_;
        buffer_.resize(std::min<uint64_t>(size_ - at_, 1 << 16));
        if (!ReadAt(fd_, at_, buffer_.size(), buffer_.data())) return Fail("cannot be read");
      }
      const size_t now = std::min<size_t>(bytes, buffer_at_ + buffer_.size() - at_);
      std::memcpy(out, buffer_.data() + (at_ - buffer_at_), now);
      out += now;
      at_ += now;
      bytes -= now;
    }
  }
  void Skip(uint64_t bytes) {
    if (bytes > left()) return Fail(kEndsEarly);
    at_ += bytes;
  }
  // Returns the length of a text. Fails if the length is more than `most`, or the text does not fit
  // in the header.
  uint64_t TextBytes(uint64_t most) {
    const auto bytes = Number<uint64_t>();
    if (bytes <= std::min(most, left())) return bytes;
    Fail(absl::StrCat("a string of ", bytes, " bytes exceeds the header or the limit of ", most));
    return 0;
  }
  // REQUIRES: `type` is a known type, neither kText nor kList.
  GgufValue Single(uint32_t type) {
    switch (type) {
      case kU8:
        return uint64_t{Number<uint8_t>()};
      case kI8:
        return int64_t{Number<int8_t>()};
      case kU16:
        return uint64_t{Number<uint16_t>()};
      case kI16:
        return int64_t{Number<int16_t>()};
      case kU32:
        return uint64_t{Number<uint32_t>()};
      case kI32:
        return int64_t{Number<int32_t>()};
      case kF32:
        return double{Number<float>()};
      case kBool:
        return Number<uint8_t>() != 0;
      case kU64:
        return Number<uint64_t>();
      case kI64:
        return Number<int64_t>();
      default:
        return Number<double>();
    }
  }
  // Reads a list. Skips the list unless the caller asked for it in this type.
  GgufValue List(const std::string& name) {
    const auto type = Number<uint32_t>();
    const auto count = Number<uint64_t>();
    if (type > kF64 || type == kList || count > left() / kValueBytes[type]) {
      Fail(absl::StrCat("field ", name, ": a list of ", count, " values of type ", type,
                        " exceeds the header, or the type is not supported"));
      return SkippedList{};
    }
    absl::string_view list = name;
    if (vocabulary_ != nullptr && absl::ConsumePrefix(&list, "tokenizer.ggml.")) {
      if (count > kMaxLongList)
        Fail(absl::StrCat("field ", name, " has ", count, " values, more than ", kMaxLongList));
      if (ok() && TakeVocabulary(list, type, count)) return SkippedList{};
    }
    if (type == kText) {
      for (uint64_t i = 0; ok() && i < count; ++i) Skip(TextBytes(kMaxTextBytes));
    } else if (type == kBool && count <= kMaxShortList) {
      std::vector<bool> values(count);
      for (uint64_t i = 0; ok() && i < count; ++i) values[i] = Number<uint8_t>() != 0;
      return values;
    } else {
      Skip(count * kValueBytes[type]);
    }
    return SkippedList{};
  }
  // If the list belongs to the vocabulary, stores the list and returns true.
  bool TakeVocabulary(absl::string_view list, uint32_t type, uint64_t count) {
    const bool is_number = type != kText && type != kBool;
    if (list == "tokens" && type == kText) {
      vocabulary_->tokens = Texts(count);
    } else if (list == "merges" && type == kText) {
      vocabulary_->merges = Texts(count);
    } else if (list == "scores" && is_number) {
      vocabulary_->scores = Numbers<float>(type, count);
    } else if (list == "token_type" && is_number) {
      vocabulary_->token_types = Numbers<int32_t>(type, count);
    } else {
      return false;
    }
    return true;
  }
  TextList Texts(uint64_t count) {
    TextList texts;
    for (uint64_t i = 0; ok() && i < count; ++i) {
      const uint64_t bytes = TextBytes(kMaxTextBytes);
      Take(bytes, texts.Add(bytes));
    }
    return texts;
  }
  // Reads numbers as T. If T is an integer type, a fraction becomes 0, and so does an integer
  // outside T's range.
  template <typename T>
  std::vector<T> Numbers(uint32_t type, uint64_t count) {
    std::vector<T> numbers(count);
    for (uint64_t i = 0; ok() && i < count; ++i) {
      const GgufValue value = Single(type);
      if (const auto* real = std::get_if<double>(&value)) {
        if (std::is_floating_point_v<T>) numbers[i] = static_cast<T>(*real);
      } else if (const auto* natural = std::get_if<uint64_t>(&value)) {
        numbers[i] = Narrowed<T>(*natural);
      } else if (const auto* integer = std::get_if<int64_t>(&value)) {
        numbers[i] = Narrowed<T>(*integer);
      }
    }
    return numbers;
  }
  template <typename T, typename From>
  static T Narrowed(From value) {
    const auto narrow = static_cast<T>(value);
    if constexpr (std::is_floating_point_v<T>) return narrow;
    return static_cast<From>(narrow) == value ? narrow : T{};
  }

  const int fd_;
  const uint64_t size_;
  GgufVocabulary* const vocabulary_;
  uint64_t at_ = 0, buffer_at_ = 0;
  std::string buffer_, why_;
};

// Checks that each row has a whole number of quantization blocks, and that the tensor's bytes are
// inside the file.
absl::Status CheckSize(uint64_t data_begin, uint64_t file_bytes, TensorView* view) {
  const auto bad = [view](const auto&... what) {
    return absl::DataLossError(absl::StrCat(view->file, ": tensor ", view->name, " of type ",
                                            view->dtype_text, ": ", what...));
  };
  uint64_t elements = 1;
  for (const int64_t size : view->shape) {
    if (size < 1 || __builtin_mul_overflow(elements, static_cast<uint64_t>(size), &elements) ||
        elements > INT64_MAX / 4) {
      return bad("shape ", view->ShapeText(), " is empty or too large");
    }
  }
  // the type is not supported; CheckDtype reports it if the tensor is used
  if (!view->type.has_value()) return absl::OkStatus();
  if (view->shape.empty() || view->shape.back() % FormOf(*view->type).values != 0)
    return bad("rows of shape ", view->ShapeText(), " are not a whole number of blocks");
  view->bytes = RowBytes(*view->type, static_cast<int64_t>(elements));
  if (data_begin > file_bytes || view->offset > file_bytes - data_begin ||
      view->bytes > file_bytes - data_begin - view->offset) {
    return bad("its ", view->bytes, " bytes lie outside the file; download the file again");
  }
  view->offset += data_begin;
  return absl::OkStatus();
}

TensorView ReadTensor(HeaderReader* reader, const TensorFile& file) {
  TensorView view;
  view.name = HuggingFaceName(reader->Name());
  view.file = file.path;
  view.fd = file.fd;
  const auto rank = reader->Number<uint32_t>();
  if (rank > kMaxGgufRank) reader->Fail(absl::StrCat("tensor ", view.name, ": bad rank ", rank));
  for (uint32_t i = 0; reader->ok() && i < rank; ++i) {
    const auto size = reader->Number<uint64_t>();
    view.shape.insert(view.shape.begin(),
                      static_cast<int64_t>(std::min<uint64_t>(size, INT64_MAX)));
  }
  const auto number = reader->Number<uint32_t>();
  view.dtype_text = absl::StrCat("type ", number);
  for (const TypeName& type : kTypes) {
    if (type.number == number) view.dtype_text = type.name;
  }
  for (int i = 0; i <= static_cast<int>(ElementType::kQ6_K); ++i) {
    const auto type = static_cast<ElementType>(i);
    if (view.dtype_text == FormOf(type).name) view.type = type;
  }
  view.offset = reader->Number<uint64_t>();
  // The prefix makes the weights digest differ from the digest of a safetensors file, which stores
  // norms without the added 1.
  view.dtype_text = absl::StrCat("GGUF ", view.dtype_text);
  view.is_one_more = absl::EndsWith(view.name, "norm.weight");
  return view;
}

absl::Status CheckOverlap(const std::vector<TensorView>& tensors) {
  std::vector<const TensorView*> order;
  for (const TensorView& view : tensors) {
    if (view.type.has_value()) order.push_back(&view);
  }
  std::sort(order.begin(), order.end(),
            [](const TensorView* a, const TensorView* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset >= order[i - 1]->offset + order[i - 1]->bytes) continue;
    return absl::DataLossError(absl::StrCat(order[i]->file, ": tensor ", order[i]->name,
                                            " overlaps tensor ", order[i - 1]->name));
  }
  return absl::OkStatus();
}

absl::Status CheckVersion(const std::string& path, uint32_t version) {
  if (version == 2 || version == 3) return absl::OkStatus();
  const bool is_big = version != 0 && version % (1U << 24) == 0;
  return absl::UnimplementedError(
      absl::StrCat(path, ": GGUF ", is_big ? "in big endian" : absl::StrCat("version ", version),
                   " is not supported; must be version 2 or 3 in little endian"));
}

// Checks that the file holds a complete Gemma 3 text model.
absl::Status CheckModel(const std::string& path, const GgufHeader& header) {
  const auto refuse = [&path](const auto&... what) {
    return absl::UnimplementedError(absl::StrCat(path, ": ", what...));
  };
  constexpr char kArchitecture[] = "general.architecture", kParts[] = "split.count";
  if (header.FieldIs(kArchitecture, "clip") || header.FieldIs("general.type", "mmproj"))
    return refuse("is the vision part of a model (mmproj); give the file of the text model");
  if (!header.FieldIs(kArchitecture, "gemma3")) {
    const auto* name = std::get_if<std::string>(&header.Field(kArchitecture));
    return refuse("general.architecture must be gemma3; got \"",
                  name == nullptr ? "" : absl::CHexEscape(name->substr(0, 64)), "\"");
  }
  const auto* natural = std::get_if<uint64_t>(&header.Field(kParts));
  const auto* integer = std::get_if<int64_t>(&header.Field(kParts));
  const uint64_t parts = natural != nullptr                   ? *natural
                         : integer != nullptr && *integer > 0 ? static_cast<uint64_t>(*integer)
                                                              : 1;
  if (parts > 1) return refuse("is one of ", parts, " parts; join the parts with llama-gguf-split");
  return absl::OkStatus();
}

absl::Status ReadEntries(HeaderReader* reader, uint64_t tensors, uint64_t fields,
                         GgufHeader* header) {
  const std::string& path = header->file->path;
  const auto bad = [&path](const auto&... what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what...));
  };
  if (tensors > kMaxEntries || fields > kMaxEntries)
    return bad(tensors, " tensors and ", fields, " fields: must be at most ", kMaxEntries, " each");
  for (uint64_t i = 0; reader->ok() && i < fields; ++i) {
    const std::string name = reader->Name();
    GgufValue value = reader->Value(name, reader->Number<uint32_t>());
    std::string shown(absl::StripPrefix(absl::StripPrefix(name, "gemma3."), "tokenizer.ggml."));
    if (!header->fields.emplace(shown, std::move(value)).second && reader->ok())
      return bad("field ", name, " occurs twice");
  }
  std::set<std::string> names;
  for (uint64_t i = 0; reader->ok() && i < tensors; ++i) {
    header->tensors.push_back(ReadTensor(reader, *header->file));
    if (!names.insert(header->tensors.back().name).second && reader->ok())
      return bad("tensor ", header->tensors.back().name, " occurs twice");
  }
  return reader->ok() ? absl::OkStatus() : bad(reader->why());
}

}  // namespace

const GgufValue& GgufHeader::Field(absl::string_view name) const {
  static const GgufValue kNothing;
  const auto found = fields.find(std::string(name));
  return found == fields.end() ? kNothing : found->second;
}

bool GgufHeader::FieldIs(absl::string_view name, absl::string_view text) const {
  const auto* said = std::get_if<std::string>(&Field(name));
  return said != nullptr && *said == text;
}

bool IsGgufFile(const std::string& path) {
  char magic[sizeof kMagic] = {};
  const absl::StatusOr<int> fd = OpenModelFile(path);
  if (!fd.ok()) return false;
  const bool is_read = ReadAt(*fd, 0, sizeof magic, magic);
  close(*fd);
  return is_read && std::memcmp(magic, kMagic, sizeof magic) == 0;
}

absl::StatusOr<GgufHeader> ReadGgufHeader(const std::string& path, bool with_vocabulary) {
  const absl::StatusOr<int> fd = OpenModelFile(path);
  if (!fd.ok()) return fd.status();
  auto file = std::make_shared<TensorFile>();
  file->path = path;
  file->fd = *fd;
  if (fstat(*fd, &file->opened) != 0) return absl::ErrnoToStatus(errno, path);
  GgufHeader header;
  header.file = file;
  HeaderReader reader(*file, with_vocabulary ? &header.vocabulary : nullptr);
  reader.Number<uint32_t>();  // skip the magic number
  const auto version = reader.Number<uint32_t>();
  const auto tensors = reader.Number<uint64_t>(), fields = reader.Number<uint64_t>();
  if (absl::Status s = CheckVersion(path, version); reader.ok() && !s.ok()) return s;
  if (absl::Status s = ReadEntries(&reader, tensors, fields, &header); !s.ok()) return s;
  if (absl::Status s = CheckModel(path, header); !s.ok()) return s;
  const auto* said = std::get_if<uint64_t>(&header.Field("general.alignment"));
  const uint64_t alignment = said == nullptr ? 32 : *said;
  if (alignment < 8 || alignment > (1 << 20) || (alignment & (alignment - 1)) != 0)
    return absl::DataLossError(absl::StrCat(path, ": unsupported general.alignment ", alignment));
  const uint64_t begin = (reader.at() + alignment - 1) / alignment * alignment;
  for (TensorView& view : header.tensors) {
    const auto bytes = static_cast<uint64_t>(file->opened.st_size);
    if (absl::Status s = CheckSize(begin, bytes, &view); !s.ok()) return s;
  }
  if (absl::Status s = CheckOverlap(header.tensors); !s.ok()) return s;
  return header;
}

}  // namespace hearth
