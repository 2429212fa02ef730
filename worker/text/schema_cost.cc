#include "worker/text/schema_cost.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/text/schema_check.h"

namespace hearth {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kItems[] = "[]";                // name of all items of an array
constexpr uint64_t kEndless = UINT64_MAX;      // length of a text that never ends
constexpr uint64_t kMost = uint64_t{1} << 40;  // results of Plus and Times are at most this

uint64_t Plus(uint64_t a, uint64_t b) {
  if (a == kEndless || b == kEndless) return kEndless;
  return std::min(a + b, kMost);
}
uint64_t Times(uint64_t a, uint64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kMost / b ? kMost : a * b;
}

absl::Status TooLarge(const std::string& path, absl::string_view what, uint64_t most) {
  return absl::InvalidArgumentError(
      absl::StrCat("grammar.json_schema: ", path, ": ", what, " ", most));
}

// A schema, and the schemas directly in it, as indices of SchemaGraph.
struct Node {
  const Json* schema = nullptr;
  std::string path;
  std::vector<size_t> all_of, any_of, one_of, prefix_items;
  std::vector<std::pair<std::string, size_t>> properties;
  std::vector<size_t> rest;  // items, additionalProperties and patternProperties
  int64_t items = -1, reference = -1;

  // Calls `visit` for each schema in this schema, except definitions.
  template <typename Visit>
  void VisitParts(const Visit& visit) const {
    for (const auto* list : {&all_of, &any_of, &one_of, &prefix_items, &rest}) {
      for (const size_t one : *list) visit(one);
    }
    for (const auto& [name, one] : properties) visit(one);
  }
};

// Weight of a schema; a JSON value of an enum or const weighs 1. The library needs 25 to 75 us for
// a schema, most for a schema without type, and less than 1 us for a value.
constexpr uint64_t kSchemaWeight = 25;

// What an intersection with a schema costs.
struct Extent {
  uint64_t branches = 1;  // alternatives of the schema itself
  uint64_t flat =
      kSchemaWeight;          // weight, where a reference in properties or items weighs 1 schema
  uint64_t all_branches = 1;  // product of alternatives, also of its properties and items
  uint64_t size = kSchemaWeight;  // weight, where a reference weighs as much as its target
  uint64_t places = 0;            // properties and prefixItems
  uint64_t rest = 0;              // size of items, additionalProperties and patternProperties
  bool recursive = false;         // a reference leads back to the schema that contains it
  bool has_any_key = false;       // has a schema for properties that are not listed
  std::vector<uint64_t> keys;     // bits of the listed properties, by number of the name

  bool is_flat() const { return places == 0 && rest == 0; }
};

void AddKeys(const Extent& from, Extent* to) {
  to->has_any_key = to->has_any_key || from.has_any_key;
  if (from.keys.empty()) return;
  to->keys.resize(from.keys.size());
  for (size_t i = 0; i < from.keys.size(); ++i) to->keys[i] |= from.keys[i];
}

// Returns whether a property or item may have to obey schemas of both.
bool ShareKeys(const Extent& a, const Extent& b) {
  if (a.is_flat() || b.is_flat()) return false;
  if (a.has_any_key || b.has_any_key) return true;
  for (size_t i = 0; i < std::min(a.keys.size(), b.keys.size()); ++i) {
    if ((a.keys[i] & b.keys[i]) != 0) return true;
  }
  return false;
}

size_t ValuesOf(const Json& value) {
  if (!value.is_structured()) return 1;
  size_t count = 1;
  for (const Json& one : value) count += ValuesOf(one);
  return count;
}

class SchemaGraph {
 public:
  explicit SchemaGraph(const Json& root) {
    names_[kItems] = 0;
    Add("#", root);
    weight_ = kSchemaWeight * nodes_.size() + ValuesOf(root);
    for (Node& node : nodes_) {
      if (!node.schema->is_object() || !node.schema->contains("$ref")) continue;
      const std::string to =
          absl::StrReplaceAll(node.schema->at("$ref").get<std::string>(),
                              {{"%25", "%"}, {"%22", "\""}, {"%20", " "}, {"%24", "$"}});
      node.reference = static_cast<int64_t>(index_.at(to));
    }
    FindGroups();
  }

  absl::Status CheckNesting() const;
  absl::Status CheckIntersections();
  absl::Status CheckForcedText();

 private:
  size_t Add(const std::string& path, const Json& schema);
  void FindGroups();

  // The library follows each reference once, so a cycle of schemas nests as deep as all its parts.
  struct Group {
    std::vector<size_t> targets;
    uint64_t depth = 0;
  };
  uint64_t DepthOf(size_t node, size_t target, std::vector<size_t>* left) const;

  Extent Intersect(Extent a, Extent b) const;
  Extent BranchesOf(const std::vector<size_t>& nodes);
  Extent BaseOf(const Node& node);
  const Extent& ExtentOf(size_t node);

  uint64_t MinimumOf(const Node& node, uint64_t* greatest) const;
  uint64_t ArrayMinimum(const Node& node) const;
  uint64_t ObjectMinimum(const Node& node) const;

  uint64_t weight_ = 0;                  // of the schema without its references
  std::map<std::string, size_t> names_;  // number of each property name, and of kItems
  std::vector<Node> nodes_;
  std::map<std::string, size_t> index_;  // node of each path
  std::vector<bool> is_target_;          // the root, and nodes that a reference names
  // groups_: targets that lead to each other; each group is after the groups that it leads to
  std::vector<Group> groups_;
  std::vector<size_t> group_of_;  // group of each target

  enum class Progress { kNew, kOpen, kDone };
  std::vector<Progress> progress_;
  std::vector<Extent> extents_;
  uint64_t intersected_ = 0;
  std::string worst_path_;
  uint64_t worst_ = 0;
  std::vector<uint64_t> minimum_;  // bytes of the shortest text of each schema
};

size_t SchemaGraph::Add(const std::string& path, const Json& schema) {
  const size_t self = nodes_.size();
  nodes_.emplace_back();
  index_[path] = self;
  Node node;
  node.schema = &schema;
  node.path = path;
  if (schema.is_object()) {
    const auto below = [](const std::string& at, const std::string& key) {
      return absl::StrCat(at, "/", absl::StrReplaceAll(key, {{"~", "~0"}, {"/", "~1"}}));
    };
    for (const auto& [key, value] : schema.items()) {
      const std::string at = below(path, key);
      if (value.is_array() && key != "enum" && key != "const" && key != "required") {
        std::vector<size_t>* const list = key == "allOf"         ? &node.all_of
                                          : key == "anyOf"       ? &node.any_of
                                          : key == "oneOf"       ? &node.one_of
                                          : key == "prefixItems" ? &node.prefix_items
                                          : key == "items"       ? &node.prefix_items
                                                                 : nullptr;
        if (list == nullptr) continue;
        for (size_t i = 0; i < value.size(); ++i) {
          list->push_back(Add(absl::StrCat(at, "/", i), value[i]));
        }
      } else if (value.is_object() && (key == "properties" || key == "patternProperties" ||
                                       key == "$defs" || key == "definitions")) {
        for (const auto& [name, one] : value.items()) {
          const size_t added = Add(below(at, name), one);
          if (key == "properties") {
            node.properties.emplace_back(name, added);
            names_.try_emplace(name, names_.size());
          }
          if (key == "patternProperties") node.rest.push_back(added);
        }
      } else if (key == "items" || key == "additionalItems" || key == "additionalProperties") {
        node.rest.push_back(Add(at, value));
        if (key != "additionalProperties") node.items = static_cast<int64_t>(node.rest.back());
      }
    }
  }
  nodes_[self] = std::move(node);
  return self;
}

// --- nesting ---

// Returns the levels from `node` down to the next targets of references, which are appended to
// *left. `target`: where the walk began.
uint64_t SchemaGraph::DepthOf(size_t node, size_t target, std::vector<size_t>* left) const {
  if (node != target && is_target_[node]) {
    left->push_back(node);
    return 0;
  }
  uint64_t depth = 0;
  nodes_[node].VisitParts([&](size_t one) { depth = std::max(depth, DepthOf(one, target, left)); });
  const int64_t reference = nodes_[node].reference;
  if (reference >= 0) left->push_back(static_cast<size_t>(reference));
  return depth + 1;
}

// Tarjan's algorithm, without recursion.
void SchemaGraph::FindGroups() {
  is_target_.assign(nodes_.size(), false);
  is_target_[0] = true;
  for (const Node& node : nodes_) {
    if (node.reference >= 0) is_target_[static_cast<size_t>(node.reference)] = true;
  }
  constexpr size_t kNone = SIZE_MAX;
  group_of_.assign(nodes_.size(), kNone);
  std::vector<size_t> order(nodes_.size(), kNone), lowest(nodes_.size()), open;
  std::vector<std::vector<size_t>> next(nodes_.size());
  std::vector<uint64_t> depth(nodes_.size());
  size_t count = 0;
  std::vector<std::pair<size_t, size_t>> walk = {{0, 0}};  // target, and index in its `next`
  while (!walk.empty()) {
    const size_t target = walk.back().first;
    if (order[target] == kNone) {
      order[target] = lowest[target] = count++;
      open.push_back(target);
      depth[target] = DepthOf(target, target, &next[target]);
    }
    if (walk.back().second < next[target].size()) {
      const size_t one = next[target][walk.back().second++];
      if (order[one] == kNone) {
        walk.emplace_back(one, 0);
      } else if (group_of_[one] == kNone) {
        lowest[target] = std::min(lowest[target], order[one]);
      }
      continue;
    }
    walk.pop_back();
    if (!walk.empty()) {
      size_t& above = lowest[walk.back().first];
      above = std::min(above, lowest[target]);
    }
    if (lowest[target] != order[target]) continue;
    Group group;
    uint64_t below = 0;
    do {
      group.targets.push_back(open.back());
      group_of_[open.back()] = groups_.size();
      open.pop_back();
    } while (group.targets.back() != target);
    for (const size_t one : group.targets) {
      group.depth += depth[one];
      for (const size_t to : next[one]) {
        if (group_of_[to] != groups_.size()) below = std::max(below, groups_[group_of_[to]].depth);
      }
    }
    group.depth += below;
    groups_.push_back(std::move(group));
  }
}

absl::Status SchemaGraph::CheckNesting() const {
  for (const Group& group : groups_) {
    if (group.depth <= SchemaLimits::kNesting) continue;
    return TooLarge(nodes_[group.targets.back()].path,
                    "schemas and references must not be nested deeper than",
                    SchemaLimits::kNesting);
  }
  return absl::OkStatus();
}

// --- intersections ---

// For each alternative of one schema, the library copies the other schema.
Extent SchemaGraph::Intersect(Extent a, Extent b) const {
  // Without common properties, the references below stay references.
  const bool flat = !ShareKeys(a, b);
  Extent both;
  for (Extent* one : {&a, &b}) {
    if (one->recursive && !flat) one->size = std::max(one->size, weight_);
    AddKeys(*one, &both);
  }
  both.branches = Times(a.branches, b.branches);
  both.all_branches = Times(a.all_branches, b.all_branches);
  both.places = Plus(Times(a.places, b.all_branches), Times(b.places, a.all_branches));
  both.rest = Plus(Times(a.rest, b.all_branches), Times(b.rest, a.all_branches));
  both.recursive = a.recursive || b.recursive;
  if (flat) {
    both.flat = Plus(Times(a.branches, b.flat), Times(b.branches, a.flat));
    both.size = Plus(Times(a.branches, b.size), Times(b.branches, a.size));
    return both;
  }
  both.size = Plus(Times(a.all_branches, b.size), Times(b.all_branches, a.size));
  // Each property of one schema meets the additionalProperties of the other.
  both.size = Plus(both.size, Plus(Times(a.places, b.rest), Times(b.places, a.rest)));
  if (b.rest > 0) {
    both.all_branches = Plus(both.all_branches, Times(a.places, b.all_branches - 1));
  }
  if (a.rest > 0) {
    both.all_branches = Plus(both.all_branches, Times(b.places, a.all_branches - 1));
  }
  // The library follows a recursive schema as far as the other schema goes.
  if (both.recursive) both.size = std::max(both.size, Times(a.size, b.size));
  if (a.recursive && b.recursive) both.size = kMost;
  both.flat = both.size;
  return both;
}

Extent SchemaGraph::BranchesOf(const std::vector<size_t>& nodes) {
  Extent sum;
  sum.branches = sum.all_branches = 0;
  for (const size_t node : nodes) {
    const Extent one = ExtentOf(node);
    sum.branches = Plus(sum.branches, one.branches);
    sum.all_branches = Plus(sum.all_branches, one.all_branches);
    sum.flat = Plus(sum.flat, one.flat);
    sum.size = Plus(sum.size, one.size);
    sum.places = Plus(sum.places, one.places);
    sum.rest = Plus(sum.rest, one.rest);
    sum.recursive = sum.recursive || one.recursive;
    AddKeys(one, &sum);
  }
  sum.branches = std::max<uint64_t>(sum.branches, 1);
  sum.all_branches = std::max<uint64_t>(sum.all_branches, 1);
  return sum;
}

// Returns the extent of the keywords that need no intersection.
Extent SchemaGraph::BaseOf(const Node& node) {
  Extent base;
  const auto add = [&](size_t part) {
    const Extent one = ExtentOf(part);
    // A reference stays a reference if the other schema is flat.
    base.flat = Plus(base.flat, nodes_[part].reference >= 0 ? kSchemaWeight : one.flat);
    base.size = Plus(base.size, one.size);
    base.all_branches = Plus(base.all_branches, one.all_branches - 1);
    base.places = Plus(base.places, one.places);
    base.recursive = base.recursive || one.recursive;
    return one;
  };
  const auto add_key = [&](const std::string& name) {
    const size_t number = names_.at(name);
    base.keys.resize(names_.size() / 64 + 1);
    base.keys[number / 64] |= uint64_t{1} << (number % 64);
  };
  for (const auto& [name, part] : node.properties) {
    base.rest = Plus(base.rest, add(part).rest);
    add_key(name);
  }
  for (const size_t part : node.prefix_items) base.rest = Plus(base.rest, add(part).rest);
  if (!node.prefix_items.empty() || node.items >= 0) add_key(kItems);
  base.places = Plus(base.places, node.properties.size() + node.prefix_items.size());
  for (const size_t part : node.rest) {
    const Extent one = add(part);
    if (nodes_[part].schema->is_boolean()) continue;
    base.rest = Plus(base.rest, one.size);
    base.has_any_key = base.has_any_key || static_cast<int64_t>(part) != node.items;
  }
  if (!node.schema->is_object()) return base;
  const auto required = node.schema->find("required");
  if (required != node.schema->end()) {
    base.places = Plus(base.places, required->size());
    base.size = Plus(base.size, required->size());
    base.flat = Plus(base.flat, required->size());
  }
  return base;
}

const Extent& SchemaGraph::ExtentOf(size_t index) {
  if (progress_[index] == Progress::kDone) return extents_[index];
  if (progress_[index] == Progress::kOpen) {
    static const Extent kRecursive = [] {
      Extent extent;
      extent.recursive = true;
      extent.places = 1;
      extent.has_any_key = true;
      return extent;
    }();
    return kRecursive;
  }
  progress_[index] = Progress::kOpen;
  const Node& node = nodes_[index];
  std::vector<Extent> parts;
  if (node.schema->is_object()) {
    bool has_base = false;
    for (const auto& [key, value] : node.schema->items()) {
      if (key == "$ref") {
        parts.push_back(ExtentOf(static_cast<size_t>(node.reference)));
      } else if (key == "const" || key == "enum") {
        Extent values;
        values.flat = values.size = kSchemaWeight + ValuesOf(value);
        if (key == "enum") {
          values.branches = values.all_branches = std::max<uint64_t>(value.size(), 1);
        }
        parts.push_back(values);
      } else if (key == "anyOf") {
        parts.push_back(BranchesOf(node.any_of));
      } else if (key == "oneOf") {
        parts.push_back(BranchesOf(node.one_of));
      } else if (key == "allOf") {
        for (const size_t one : node.all_of) parts.push_back(ExtentOf(one));
      } else if (key != "$schema" && key != "$defs" && key != "definitions") {
        has_base = true;
      }
    }
    if (has_base || parts.empty()) {
      Extent base = BaseOf(node);
      // A type beside other keywords costs less than a schema.
      if (base.is_flat() && !parts.empty()) base.flat = base.size = 1;
      parts.push_back(std::move(base));
    }
  }
  Extent whole = parts.empty() ? Extent() : parts[0];
  uint64_t cost = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    whole = Intersect(whole, parts[i]);
    cost = Plus(cost, whole.flat);
  }
  if (cost > worst_) {
    worst_ = cost;
    worst_path_ = node.path;
  }
  intersected_ = Plus(intersected_, cost);
  extents_[index] = whole;
  progress_[index] = Progress::kDone;
  return extents_[index];
}

absl::Status SchemaGraph::CheckIntersections() {
  progress_.assign(nodes_.size(), Progress::kNew);
  extents_.assign(nodes_.size(), {});
  ExtentOf(0);
  if (intersected_ <= SchemaLimits::kIntersected) return absl::OkStatus();
  return TooLarge(
      worst_path_,
      "allOf, and anyOf, oneOf, enum or $ref beside other keywords: the combinations of "
      "their alternatives, 25 per schema and 1 per JSON value, must sum up to at most",
      SchemaLimits::kIntersected);
}

// --- text that an answer must contain ---

// Returns at most the number of characters of the shortest text that matches a pattern.
uint64_t PatternMinimum(const std::string& pattern) {
  struct Group {
    uint64_t least = kEndless;  // shortest of the complete alternatives
    uint64_t sum = 0;           // of the current alternative
    uint64_t last = 0;          // of its last part
  };
  std::vector<Group> groups(1);
  const auto repeat = [&](uint64_t times) {
    Group& group = groups.back();
    group.sum -= std::min(group.sum, group.last);
    group.last = Times(group.last, times);
    group.sum = Plus(group.sum, group.last);
  };
  const auto add = [&](uint64_t length) {
    groups.back().last = length;
    groups.back().sum = Plus(groups.back().sum, length);
  };
  const auto skip_to = [&](size_t at, char end) {
    return std::min(pattern.find(end, at), pattern.size());
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '(') {
      groups.emplace_back();
      if (i + 1 < pattern.size() && pattern[i + 1] == '?') {
        i = std::min(pattern.find_first_of(":>)", i + 1), pattern.size());
        if (i < pattern.size() && pattern[i] == ')') groups.pop_back();
      }
    } else if (c == ')' && groups.size() > 1) {
      const uint64_t length = std::min(groups.back().least, groups.back().sum);
      groups.pop_back();
      add(length);
    } else if (c == '|') {
      groups.back().least = std::min(groups.back().least, groups.back().sum);
      groups.back().sum = groups.back().last = 0;
    } else if (c == '*' || c == '?') {
      repeat(0);
    } else if (c == '{') {
      uint64_t times = 0;
      while (++i < pattern.size() && pattern[i] >= '0' && pattern[i] <= '9') {
        times = std::min<uint64_t>(times * 10 + static_cast<uint64_t>(pattern[i] - '0'), kMost);
      }
      i = skip_to(i, '}');
      repeat(times);
    } else if (c == '[') {
      while (++i < pattern.size() && pattern[i] != ']') i += pattern[i] == '\\' ? 1 : 0;
      add(1);
    } else if (c == '\\') {
      const char escape = ++i < pattern.size() ? pattern[i] : 'b';
      i += escape == 'u' ? 4 : escape == 'x' ? 2 : 0;
      if (escape == 'p' || escape == 'P') i = skip_to(i, '}');
      add(escape == 'b' || escape == 'B' ? 0 : 1);
    } else if (c != '+') {
      add(c == '^' || c == '$' ? 0 : 1);
    }
  }
  return std::min(groups[0].least, groups[0].sum);
}

uint64_t StringMinimum(const Json& schema) {
  uint64_t length = schema.value("minLength", uint64_t{0});
  if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
    length = std::max(length, PatternMinimum(pattern->get<std::string>()));
  }
  return 2 + length;
}

uint64_t SchemaGraph::ArrayMinimum(const Node& node) const {
  const uint64_t count = node.schema->value("minItems", uint64_t{0});
  uint64_t bytes = 2 + (count == 0 ? 0 : 2 * (count - 1));
  const uint64_t first = std::min<uint64_t>(count, node.prefix_items.size());
  for (size_t i = 0; i < first; ++i) bytes = Plus(bytes, minimum_[node.prefix_items[i]]);
  if (count == first) return bytes;
  const uint64_t item = node.items < 0 ? 1 : minimum_[static_cast<size_t>(node.items)];
  return item == kEndless ? kEndless : Plus(bytes, Times(count - first, item));
}

uint64_t SchemaGraph::ObjectMinimum(const Node& node) const {
  uint64_t bytes = 0, count = 0;
  const auto required = node.schema->find("required");
  if (required != node.schema->end()) {
    std::map<std::string, size_t> listed(node.properties.begin(), node.properties.end());
    for (const Json& name : *required) {
      const auto found = listed.find(name.get<std::string>());
      const uint64_t value = found == listed.end() ? 1 : minimum_[found->second];
      bytes = Plus(bytes, Plus(name.get_ref<const std::string&>().size() + 6, value));
      ++count;
    }
  }
  // Each further property has a key, a value and what separates them.
  const uint64_t least = node.schema->value("minProperties", uint64_t{0});
  if (least > count) bytes = Plus(bytes, Times(least - count, 7));
  return Plus(bytes, count == 0 && least == 0 ? 2 : 0);
}

// Returns the bytes of the shortest text that obeys `node`, if those of other schemas are right.
// Sets *greatest to the length of the longest text that a choice of type or value can force.
uint64_t SchemaGraph::MinimumOf(const Node& node, uint64_t* greatest) const {
  *greatest = 0;
  if (!node.schema->is_object()) return 1;
  const Json& schema = *node.schema;
  const auto type = schema.find("type");
  const auto may_be = [&](const char* name) {
    if (type == schema.end() || *type == name) return true;
    return type->is_array() && std::find(type->begin(), type->end(), name) != type->end();
  };
  uint64_t bytes = kEndless;
  const auto allow = [&](uint64_t one) {
    bytes = std::min(bytes, one);
    if (one != kEndless) *greatest = std::max(*greatest, one);
  };
  if (may_be("string")) allow(StringMinimum(schema));
  if (may_be("array")) allow(ArrayMinimum(node));
  if (may_be("object")) allow(ObjectMinimum(node));
  if (may_be("number") || may_be("integer") || may_be("null") || may_be("boolean")) allow(1);
  const auto restrict = [&](uint64_t least) {
    bytes = std::max(bytes, least);
    if (least != kEndless) *greatest = std::max(*greatest, least);
  };
  for (const auto* list : {&node.any_of, &node.one_of}) {
    uint64_t least = list->empty() ? 0 : kEndless;
    for (const size_t one : *list) least = std::min(least, minimum_[one]);
    restrict(least);
  }
  for (const size_t one : node.all_of) restrict(minimum_[one]);
  if (node.reference >= 0) restrict(minimum_[static_cast<size_t>(node.reference)]);
  if (const auto value = schema.find("const"); value != schema.end()) {
    restrict(value->dump().size());
  }
  if (const auto values = schema.find("enum"); values != schema.end() && !values->empty()) {
    uint64_t least = kEndless;
    for (const Json& one : *values) least = std::min<uint64_t>(least, one.dump().size());
    restrict(least);
  }
  return bytes;
}

absl::Status SchemaGraph::CheckForcedText() {
  // Begins with endless texts, and repeats until no length becomes shorter. Parts have higher
  // indices than the schema that contains them, so most schemas need one round.
  constexpr int kRounds = 64;
  minimum_.assign(nodes_.size(), kEndless);
  std::vector<uint64_t> greatest(nodes_.size());
  bool changed = true;
  for (int round = 0; round < kRounds && changed; ++round) {
    changed = false;
    for (size_t i = nodes_.size(); i-- > 0;) {
      const uint64_t bytes = MinimumOf(nodes_[i], &greatest[i]);
      changed = changed || bytes != minimum_[i];
      minimum_[i] = bytes;
    }
  }
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (greatest[i] <= SchemaLimits::kForcedBytes) continue;
    return TooLarge(nodes_[i].path, "the bytes of the shortest text must be at most",
                    SchemaLimits::kForcedBytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSchemaCost(const Json& schema) {
  SchemaGraph graph(schema);
  absl::Status status = graph.CheckNesting();
  if (status.ok()) status = graph.CheckIntersections();
  if (status.ok()) status = graph.CheckForcedText();
  return status;
}

}  // namespace hearth
