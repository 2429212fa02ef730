// JsonReader: reads JSON from untrusted sources, without exceptions and within limits.
//
// JsonDocument parses a text in one pass into two buffers: a node of 16 bytes for each value and
// each key, in the order of the text, and the bytes of all strings. So a text of N bytes takes at
// most about 9 N bytes, no value is allocated separately, and fields keep their order.
// JsonValue is a view of one value. Its getters return kInvalidArgument "PATH: must be X; got Y",
// where PATH leads from the root ("messages[0].role") and Y quotes at most kMaxQuotedBytes.
// Thread safety: const after parsing; any thread. Ownership: views borrow from their document,
// which may be moved but must outlive them. Invariants: (1) all strings are valid UTF-8; (2) no
// object has a key twice: RFC 8259 does not define which of two values counts, so such a text is
// refused; (3) limits are checked before memory is allocated.
#ifndef HEARTH_SERVICES_SERVING_JSON_READER_H_
#define HEARTH_SERVICES_SERVING_JSON_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

inline constexpr size_t kMaxJsonKeys = 1024;  // maximum number of keys of an object in a request
// maximum number of keys of one object in a file (16 MiB)
inline constexpr size_t kMaxFileKeys = size_t{1} << 20;

inline constexpr uint64_t kAllIds = uint64_t{1} << 32;

struct JsonLimits {
  size_t depth = 64;  // maximum number of nested lists and objects
  size_t keys = kMaxJsonKeys;
  // Called with a number of bytes before they are allocated. Returns false if there is no room for
  // them. Null: only the length of the text limits the memory.
  std::function<bool(uint64_t bytes)> hold = nullptr;
};

struct JsonNodes;

class JsonValue {
 public:
  bool is_null() const;
  bool is_string() const;
  bool is_number() const;
  bool is_list() const;
  bool is_object() const;
  // Whether the value is the string `text`.
  bool Is(absl::string_view text) const;
  bool IsBool(bool value) const;
  bool IsNumber(double value) const { return AsDouble() == value; }
  // Number of elements of a list or fields of an object; 0 for any other value.
  size_t size() const;

  absl::StatusOr<bool> Bool() const;
  absl::StatusOr<absl::string_view> Text() const;
  // Returns a whole number in [least, most]; 2.0 counts as 2.
  absl::StatusOr<uint64_t> Count(uint64_t least, uint64_t most) const;
  absl::StatusOr<double> Number(double least, double most) const;
  // Returns `count` token ids from a list, starting at index `first`. Each id must be below
  // `below`. The other elements of the list are not checked.
  absl::StatusOr<std::vector<uint32_t>> Ids(uint64_t below = kAllIds, size_t first = 0,
                                            size_t count = SIZE_MAX) const;
  absl::Status CheckObject() const;

  // Returns the field of an object; nullopt if absent, null, or if the value is not an object.
  std::optional<JsonValue> Find(absl::string_view name) const;
  // As Find. If there is no such field: the error "PATH: must have a NAME; got none".
  absl::StatusOr<JsonValue> FindNeeded(absl::string_view name) const;

  class Range;
  Range elements() const;  // empty unless the value is a list
  // Values of an object, each with its name; empty for any other value.
  Range fields() const;
  // Returns the name of the field. REQUIRES: the value comes from fields() or Find.
  absl::string_view name() const;

  // Returns the path from the root, such as "messages[0].role"; empty for the root.
  std::string Path() const;
  // Returns the value as JSON text, shortened like Quoted.
  std::string Quote() const;
  // Appends the value as canonical JSON text (canonical_json.h). Stops soon after `out` has
  // `most_bytes` bytes: then the text is not whole.
  void Write(std::string* out, size_t most_bytes = SIZE_MAX) const;
  // Returns kInvalidArgument "PATH: must be `must`; got VALUE".
  absl::Status Bad(absl::string_view must) const;
  // Returns kInvalidArgument "PATH: `why`".
  absl::Status Refuse(absl::string_view why) const;

 private:
  friend class JsonDocument;
  JsonValue(const JsonNodes* nodes, uint32_t at) : nodes_(nodes), at_(at) {}
  uint32_t End() const;     // the node after the last one of this value
  double AsDouble() const;  // NaN if the value is not a number

  const JsonNodes* nodes_;
  uint32_t at_;  // index of the node; a field's key is the node before it
};

class JsonValue::Range {
 public:
  class Iterator {
   public:
    JsonValue operator*() const { return at_; }
    Iterator& operator++() {
      at_.at_ = at_.End() + keys_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_.at_ != other.at_.at_; }

   private:
    friend class Range;
    Iterator(JsonValue at, uint32_t keys) : at_(at), keys_(keys) {}

    JsonValue at_;
    uint32_t keys_;  // key nodes before each value: 1 in an object, 0 in a list
  };
  Iterator begin() const { return begin_; }
  Iterator end() const { return end_; }

 private:
  friend class JsonValue;
  // The range of the values from node `begin` to node `end`.
  Range(const JsonNodes* nodes, uint32_t begin, uint32_t end, uint32_t keys)
      : begin_({nodes, begin + keys}, keys), end_({nodes, end + keys}, keys) {}

  Iterator begin_, end_;
};

class JsonDocument {
 public:
  // `name` begins errors about the whole text ("the body"). kInvalidArgument with a byte offset if
  // the text is not JSON or over a limit; kUnavailable if limits.hold refused.
  static absl::StatusOr<JsonDocument> Parse(absl::string_view text, absl::string_view name,
                                            const JsonLimits& limits = {});
  ~JsonDocument();
  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;

  JsonValue root() const { return {nodes_.get(), 0}; }
  uint64_t bytes() const;  // memory of both buffers

 private:
  explicit JsonDocument(std::unique_ptr<const JsonNodes> nodes);

  std::unique_ptr<const JsonNodes> nodes_;
};

// JsonFields: reads optional fields of one object and stores the first error. If a field is absent
// or null, its variable does not change.
//
// Thread safety: none.
class JsonFields {
 public:
  // Whether a value counts as absent. `place`: the number that the JsonFields got for its object.
  using IsAbsent = bool (*)(uint64_t place, absl::string_view name, JsonValue value);

  explicit JsonFields(JsonValue object, IsAbsent is_absent = nullptr, uint64_t place = 0)
      : object_(object), is_absent_(is_absent), place_(place), status_(object.CheckObject()) {}

  // Reads a field into *to. Returns true if the field is present and valid.
  bool Bool(absl::string_view name, bool* to);
  bool Text(absl::string_view name, std::string* to, size_t most_bytes = SIZE_MAX);
  bool Count(absl::string_view name, uint64_t least, uint64_t most, uint64_t* to);
  bool Number(absl::string_view name, double least, double most, float* to);
  // Returns a field; nullopt if it is absent, and after any error.
  std::optional<JsonValue> Find(absl::string_view name) const;
  // Stores an error that the user of this class found.
  void Add(const absl::Status& status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }

 private:
  // Stores the value in *to, or stores the error.
  template <typename Value, typename To>
  bool Take(const absl::StatusOr<Value>& value, To* to) {
    status_ = value.status();
    if (value.ok()) *to = static_cast<To>(*value);
    return value.ok();
  }

  const JsonValue object_;
  const IsAbsent is_absent_;
  const uint64_t place_;
  absl::Status status_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_JSON_READER_H_
