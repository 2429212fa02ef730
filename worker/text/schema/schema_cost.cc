#include "worker/text/schema/schema_cost.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/percent_escapes.h"
#include "worker/text/schema/schema_check.h"
#include "worker/text/schema/schema_pattern.h"
#include "worker/text/schema/schema_walk.h"

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

// A schema, and the schemas directly in it, as indices of SchemaGraph.
struct Node {
  SchemaPlace place;
  Json* schema = nullptr;
  std::vector<size_t> all_of, any_of, one_of, prefix_items;
  std::vector<std::pair<absl::string_view, size_t>> properties;
  std::vector<size_t> rest;  // items, additionalProperties and patternProperties
  int64_t items = -1, reference = -1;
  bool has_key_patterns = false;

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
constexpr uint64_t kPriceWeight = 17;  // weight of a price of 1 (PriceOf)
// kPatternWeight: weight of a value that must also obey a pattern or format. kPatternsWeight:
// weight of two patterns or formats that one string must obey, because the library searches a text
// that obeys both.
constexpr uint64_t kPatternWeight = 100, kPatternsWeight = 400;
// The library compares this many alternatives of a oneOf, or 20 of their required properties, in
// the time for a value.
constexpr uint64_t kComparedPerValue = 500;
// If an object must have one more property than the required ones, the library writes a list of
// properties for each choice. This many steps need the time for a value.
constexpr uint64_t kChoicesPerValue = 10;

// What an intersection with a schema costs.
struct Extent {
  uint64_t branches = 1;  // alternatives of the schema itself
  uint64_t values = 0;    // alternatives that restrict the text of a value
  uint64_t flat =
      kSchemaWeight;          // weight, where a reference in properties or items weighs 1 schema
  uint64_t all_branches = 1;  // product of alternatives, also of its properties and items
  uint64_t all_values = 0;    // values, also of its properties and items
  uint64_t size = kSchemaWeight;  // weight, where a reference weighs as much as its target
  uint64_t places = 0;            // properties and prefixItems
  uint64_t rest = 0;              // size of items, additionalProperties and patternProperties
  uint64_t patterns = 0;          // patterns that one string must match
  uint64_t inner_patterns = 0;    // the same, for the strings inside the value
  bool recursive = false;         // a reference leads back to the schema that contains it
  bool has_any_key = false;       // has a schema for properties that are not listed
  bool counts_keys = false;       // limits the number of properties
  std::vector<uint64_t> keys;     // bits of the listed properties, by number of the name

  bool is_flat() const { return places == 0 && rest == 0; }
};

void AddKeys(const Extent& from, Extent* to) {
  to->has_any_key = to->has_any_key || from.has_any_key;
  if (from.keys.empty()) return;
  to->keys.resize(from.keys.size());
  for (size_t i = 0; i < from.keys.size(); ++i) to->keys[i] |= from.keys[i];
}

// Returns whether one property or item may have to obey a schema in `a` and a schema in `b`.
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

// Returns the part of a JSON value that a JSON pointer such as "#/$defs/a" names; null: none.
const Json* PartAt(const Json& root, absl::string_view pointer) {
  const Json* part = &root;
  for (absl::string_view step : absl::StrSplit(pointer.substr(1), '/')) {
    if (step.data() == pointer.data() + 1) {  // "" before the first "/"
      if (!step.empty()) return nullptr;
      continue;
    }
    if (part->is_array()) {
      size_t index = 0;
      if (!absl::SimpleAtoi(step, &index) || absl::StrCat(index) != step) return nullptr;
      if (index >= part->size()) return nullptr;
      part = &(*part)[index];
    } else {
      const auto field = part->find(absl::StrReplaceAll(step, {{"~0", "~"}, {"~1", "/"}}));
      if (field == part->end()) return nullptr;
      part = &*field;
    }
  }
  return part;
}

// Returns what a schema's own keywords add to the price of a schema of its type (PriceOf).
uint64_t ExtraPrice(const Json& schema) {
  uint64_t bits = 0;  // number of bits of the greatest count of items or properties
  for (const char* keyword : {"minItems", "maxItems", "minProperties", "maxProperties"}) {
    uint64_t own_bits = 0;
    for (uint64_t left = schema.value(keyword, uint64_t{0}); left > 0; left /= 2) ++own_bits;
    bits = std::max(bits, own_bits);
  }
  uint64_t price = bits * bits / 10;  // the library writes rules for pairs of bits
  for (const char* keyword : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}) {
    if (schema.contains(keyword)) return price + 3;
  }
  const auto format = schema.find("format");
  if (format == schema.end()) return price;
  return price + (*format == "uri" ? 11 : 5);
}

// Returns what compiling a schema costs the library, without the schemas in it; 1 is about 50 us.
uint64_t PriceOf(const Json& schema) {
  if (!schema.is_object()) return 1;
  bool needs_type = !schema.contains("type");
  if (needs_type) {
    needs_type = false;
    for (auto field = schema.begin(); field != schema.end(); ++field) {
      needs_type =
          needs_type || !IsOneOf(field.key(), {"$defs", "definitions", "$schema", "$ref", "anyOf",
                                               "oneOf", "allOf", "const", "enum"});
    }
  }
  // Without a type, the library compiles a schema for each type.
  return 1 + ExtraPrice(schema) + (needs_type ? 2 : 0);
}

// Returns the value of a keyword that counts; nullopt: the schema does not have the keyword.
std::optional<uint64_t> CountOf(const Json& schema, const char* keyword) {
  const auto count = schema.find(keyword);
  if (count == schema.end()) return std::nullopt;
  return count->get<uint64_t>();
}

size_t RequiredCount(const Json& schema) {
  const auto required = schema.find("required");
  return required == schema.end() ? 0 : required->size();
}

// SchemaGraph: the schemas of a schema, with their references.
class SchemaGraph {
 public:
  explicit SchemaGraph(Json* root) {
    names_[kItems] = 0;
    Add(SchemaPlace(), root);
    weight_ = kSchemaWeight * nodes_.size() + ValuesOf(*root);
  }

  // Finds the schema of each $ref, and replaces other spellings of a $ref by Reference(): the
  // library compiles a schema once for each spelling. REQUIRED by the other methods.
  absl::Status Resolve();
  absl::Status CheckNesting() const;
  absl::Status CheckCompiled();
  absl::Status CheckIntersections();
  absl::Status CheckObjects() const;
  absl::Status CheckForcedText();
  // Returns the cost of compiling the schema, in about 3 us. REQUIRES: the checks were called.
  uint64_t cost() const;

 private:
  size_t Add(const SchemaPlace& place, Json* schema);
  void FindGroups();

  // The library follows each reference once, so a cycle of schemas nests as deep as all its parts.
  struct Group {
    std::vector<size_t> targets;
    uint64_t depth = 0;
  };
  // The schemas of one target, without the schemas of the targets in it.
  struct Target {
    std::vector<size_t> nodes, next;  // next: the targets that these schemas lead to
    uint64_t depth = 0;
  };
  uint64_t DepthOf(size_t node, size_t self, Target* target) const;

  Extent Intersect(const Extent& a, const Extent& b) const;
  Extent BranchesOf(const std::vector<size_t>& nodes);
  Extent BaseOf(const Node& node);
  void CountComparisons(const Node& node);
  const Extent& ExtentOf(size_t node);
  void NoteCost(const Node& node, uint64_t cost);

  // The parts of a schema's shortest text that do not depend on other schemas.
  struct OwnText {
    uint64_t string = kEndless, other = kEndless;  // shortest text of these types
    bool may_be_array = false, may_be_object = false;
    uint64_t items = 0, properties = 0, required = 0;  // minItems, minProperties; bytes of names
    std::vector<int64_t> required_nodes;               // schema of each name; below 0: any value
    uint64_t literal = 0;                              // shortest text of const and enum
  };
  OwnText OwnTextOf(const Node& node) const;
  uint64_t MinimumOf(size_t index);
  uint64_t ArrayMinimum(const Node& node, const OwnText& own) const;
  uint64_t ObjectMinimum(const OwnText& own) const;

  uint64_t weight_ = 0;  // weight of the whole schema; a referenced schema counts once
  absl::flat_hash_map<absl::string_view, size_t> names_;  // number of each property, and of kItems
  std::deque<Node> nodes_;
  absl::flat_hash_map<const Json*, size_t> node_of_;
  std::vector<bool> is_target_;  // the root, and nodes that a reference names
  std::vector<Target> targets_;  // by node
  // groups_: targets that lead to each other; each group is after the groups that it leads to
  std::vector<Group> groups_;
  std::vector<size_t> group_of_;  // group of each target
  uint64_t compiled_ = 0;         // schemas that the library compiles

  enum class Progress { kNew, kOpen, kDone };
  std::vector<Progress> progress_;
  std::vector<Extent> extents_;
  uint64_t intersected_ = 0;
  const Node* worst_ = nullptr;  // the schema with the greatest cost
  uint64_t worst_cost_ = 0;
  const Node* many_patterns_ = nullptr;  // a schema over kStringPatterns
  uint64_t most_patterns_ = 0;           // of one string
  std::vector<OwnText> own_;
  std::vector<uint64_t> minimum_, greatest_;  // bytes; see MinimumOf
};

size_t SchemaGraph::Add(const SchemaPlace& place, Json* schema) {
  const size_t self = nodes_.size();
  Node& node = nodes_.emplace_back();
  node.place = place;
  node.schema = schema;
  node_of_[schema] = self;
  VisitSchemas(node.place, *schema, [&](const SchemaPlace& at, Json& one) {
    const size_t added = Add(at, &one);
    const absl::string_view key = at.keyword;
    if (key == "properties") {
      node.properties.emplace_back(at.name, added);
      names_.try_emplace(at.name, names_.size());
    } else if (at.step == SchemaPlace::Step::kElement) {
      (key == "allOf"   ? node.all_of
       : key == "anyOf" ? node.any_of
       : key == "oneOf" ? node.one_of
                        : node.prefix_items)
          .push_back(added);
    } else if (key == "patternProperties" || at.step == SchemaPlace::Step::kField) {
      node.rest.push_back(added);
      node.has_key_patterns = node.has_key_patterns || key == "patternProperties";
      if (IsOneOf(key, {"items", "additionalItems"})) node.items = static_cast<int64_t>(added);
    }
    return true;
  });
  return self;
}

absl::Status SchemaGraph::Resolve() {
  absl::flat_hash_map<std::string, size_t> found;
  for (Node& node : nodes_) {
    if (!node.schema->is_object() || !node.schema->contains("$ref")) continue;
    Json& reference = (*node.schema)["$ref"];
    const auto [target, is_new] = found.try_emplace(reference.get<std::string>());
    if (is_new) {
      const auto part = node_of_.find(PartAt(*nodes_[0].schema, PercentDecoded(target->first)));
      if (part == node_of_.end()) {
        return RefuseSchema(
            SchemaPlace(&node.place, "$ref"),
            absl::StrCat("there is no schema at ", CutText(target->first, kMaxPlaceNameBytes)));
      }
      target->second = part->second;
    }
    node.reference = static_cast<int64_t>(target->second);
    reference = nodes_[target->second].place.Reference();
  }
  FindGroups();
  return absl::OkStatus();
}

// --- nesting ---

// Returns the levels from `node` down to the next targets of references. `self`: where the walk
// began.
uint64_t SchemaGraph::DepthOf(size_t node, size_t self, Target* target) const {
  if (node != self && is_target_[node]) {
    target->next.push_back(node);
    return 0;
  }
  target->nodes.push_back(node);
  uint64_t depth = 0;
  nodes_[node].VisitParts([&](size_t one) { depth = std::max(depth, DepthOf(one, self, target)); });
  const int64_t reference = nodes_[node].reference;
  if (reference >= 0) target->next.push_back(static_cast<size_t>(reference));
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
  targets_.resize(nodes_.size());
  std::vector<size_t> order(nodes_.size(), kNone), lowest(nodes_.size()), open;
  size_t count = 0;
  std::vector<std::pair<size_t, size_t>> walk = {{0, 0}};  // target, and index in its `next`
  while (!walk.empty()) {
    const size_t target = walk.back().first;
    if (order[target] == kNone) {
      order[target] = lowest[target] = count++;
      open.push_back(target);
      targets_[target].depth = DepthOf(target, target, &targets_[target]);
    }
    const std::vector<size_t>& next = targets_[target].next;
    if (walk.back().second < next.size()) {
      const size_t one = next[walk.back().second++];
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
      group.depth += targets_[one].depth;
      for (const size_t to : targets_[one].next) {
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
    return RefuseSchema(nodes_[group.targets.back()].place,
                        absl::StrCat("schemas and references must not be nested deeper than ",
                                     SchemaLimits::kNesting));
  }
  return absl::OkStatus();
}

// The library compiles the target of a reference with all schemas in it, and the root.
absl::Status SchemaGraph::CheckCompiled() {
  std::vector<uint64_t> price(nodes_.size());
  for (size_t i = nodes_.size(); i-- > 0;) {
    price[i] = PriceOf(*nodes_[i].schema);
    nodes_[i].VisitParts([&](size_t one) { price[i] = Plus(price[i], price[one]); });
  }
  for (const Group& group : groups_) {
    for (const size_t target : group.targets) compiled_ = Plus(compiled_, price[target]);
  }
  const auto names_root = [](const Node& node) { return node.reference == 0; };
  if (std::any_of(nodes_.begin(), nodes_.end(), names_root)) compiled_ = Plus(compiled_, price[0]);
  if (compiled_ <= SchemaLimits::kCompiled) return absl::OkStatus();
  return RefuseSchema(
      SchemaPlace(),
      absl::StrCat(
          "all schemas must count at most ", SchemaLimits::kCompiled,
          ": 1 each; 2 more without type; 3 more with minimum or maximum; 1 to 40 more with "
          "minItems, maxItems, minProperties or maxProperties; 5 more with a format, 11 "
          "with uri; and again inside the target of a $ref; got ",
          compiled_));
}

absl::Status SchemaGraph::CheckObjects() const {
  for (const Node& node : nodes_) {
    const Json& schema = *node.schema;
    if (!schema.is_object() || !IsClosed(schema)) continue;
    const std::optional<uint64_t> least = CountOf(schema, "minProperties");
    if (!least.has_value()) continue;
    const size_t listed = node.properties.size(), required = RequiredCount(schema);
    const SchemaPlace at(&node.place, "minProperties");
    if (*least > listed && schema.value("type", Json()) == "object") {
      return RefuseSchema(at, absl::StrCat("must be at most ", listed,
                                           ", the number of properties, "
                                           "because additionalProperties is false; got ",
                                           *least));
    }
    if (*least == required + 1 && listed > required + SchemaLimits::kChosen) {
      return RefuseSchema(at, absl::StrCat("the object must have at most ", SchemaLimits::kChosen,
                                           " optional properties with this minProperties; got ",
                                           listed - required));
    }
  }
  return absl::OkStatus();
}

// --- intersections ---

// For each alternative of one schema, the library copies the other schema.
Extent SchemaGraph::Intersect(const Extent& a, const Extent& b) const {
  // If a and b have no common properties, the library does not follow the references in their
  // properties and items.
  const bool flat = !ShareKeys(a, b);
  const auto size_of = [&](const Extent& one) {
    return one.recursive && !flat ? std::max(one.size, weight_) : one.size;
  };
  const uint64_t a_size = size_of(a), b_size = size_of(b);
  Extent both;
  AddKeys(a, &both);
  AddKeys(b, &both);
  both.branches = Times(a.branches, b.branches);
  both.values =
      std::min(both.branches, Plus(Times(a.values, b.branches), Times(b.values, a.branches)));
  both.all_branches = Times(a.all_branches, b.all_branches);
  both.all_values = std::max({Plus(a.all_values, b.all_values), Times(a.all_values, b.all_branches),
                              Times(b.all_values, a.all_branches)});
  both.places = Plus(Times(a.places, b.all_branches), Times(b.places, a.all_branches));
  both.rest = Plus(Times(a.rest, b.all_branches), Times(b.rest, a.all_branches));
  both.patterns = a.patterns + b.patterns;
  both.inner_patterns =
      flat ? std::max(a.inner_patterns, b.inner_patterns) : a.inner_patterns + b.inner_patterns;
  both.recursive = a.recursive || b.recursive;
  both.counts_keys = a.counts_keys || b.counts_keys;
  // The library intersects each value of `a` with each value of `b`.
  const bool has_patterns[] = {a.patterns + a.inner_patterns > 0,
                               b.patterns + b.inner_patterns > 0};
  const uint64_t pair_weight = has_patterns[0] && has_patterns[1]   ? kPatternsWeight
                               : has_patterns[0] || has_patterns[1] ? kPatternWeight
                                                                    : kSchemaWeight;
  const uint64_t pairs = Times(pair_weight, Times(a.values, b.values));
  if (flat) {
    both.flat = Plus(pairs, Plus(Times(a.branches, b.flat), Times(b.branches, a.flat)));
    both.size = Plus(pairs, Plus(Times(a.branches, b_size), Times(b.branches, a_size)));
  } else {
    both.size = Plus(Times(pair_weight, Times(a.all_values, b.all_values)),
                     Plus(Times(a.all_branches, b_size), Times(b.all_branches, a_size)));
    // The library intersects each property of a schema with the other's additionalProperties.
    both.size = Plus(both.size, Plus(Times(a.places, b.rest), Times(b.places, a.rest)));
    if (b.rest > 0) {
      both.all_branches = Plus(both.all_branches, Times(a.places, b.all_branches - 1));
    }
    if (a.rest > 0) {
      both.all_branches = Plus(both.all_branches, Times(b.places, a.all_branches - 1));
    }
    // The library follows a recursive schema as far as the other schema goes.
    if (both.recursive) both.size = std::max(both.size, Times(a_size, b_size));
    if (a.recursive && b.recursive) both.size = kMost;
    both.flat = both.size;
  }
  if (both.counts_keys) {
    const uint64_t choices = Times(both.places, Times(both.places, both.places));
    both.flat = Plus(both.flat, choices / kChoicesPerValue);
  }
  return both;
}

Extent SchemaGraph::BranchesOf(const std::vector<size_t>& nodes) {
  Extent sum;
  sum.branches = sum.all_branches = 0;
  for (const size_t node : nodes) {
    const Extent& one = ExtentOf(node);
    sum.branches = Plus(sum.branches, one.branches);
    sum.values = Plus(sum.values, one.values);
    sum.all_branches = Plus(sum.all_branches, one.all_branches);
    sum.all_values = Plus(sum.all_values, one.all_values);
    sum.flat = Plus(sum.flat, one.flat);
    sum.size = Plus(sum.size, one.size);
    sum.places = Plus(sum.places, one.places);
    sum.rest = Plus(sum.rest, one.rest);
    sum.patterns = std::max(sum.patterns, one.patterns);
    sum.inner_patterns = std::max(sum.inner_patterns, one.inner_patterns);
    sum.recursive = sum.recursive || one.recursive;
    sum.counts_keys = sum.counts_keys || one.counts_keys;
    AddKeys(one, &sum);
  }
  sum.branches = std::max<uint64_t>(sum.branches, 1);
  sum.all_branches = std::max<uint64_t>(sum.all_branches, 1);
  return sum;
}

// Counts the comparisons of the schemas of a oneOf: the library compares each pair of them.
void SchemaGraph::CountComparisons(const Node& node) {
  uint64_t compared = 0, branches = 0, required = 0, count = 0;
  for (const size_t one : node.one_of) {
    const Extent& extent = ExtentOf(one);
    const Json& schema = *nodes_[one].schema;
    const size_t keys = schema.is_object() ? RequiredCount(schema) : 0;
    // A property is found by its required name; other schemas may require names, too.
    compared = Plus(compared, Times(branches, extent.all_branches));
    compared = Plus(compared, Times(kComparedPerValue / 20, required + count * keys));
    branches = Plus(branches, extent.all_branches);
    required += keys;
    ++count;
  }
  NoteCost(node, compared / kComparedPerValue);
}

// Returns the extent of the keywords that need no intersection.
Extent SchemaGraph::BaseOf(const Node& node) {
  Extent base;
  uint64_t key_patterns = 0;
  const auto add = [&](size_t part) -> const Extent& {
    const Extent& one = ExtentOf(part);
    // The library does not follow a reference if the other schema is flat.
    base.flat = Plus(base.flat, nodes_[part].reference >= 0 ? kSchemaWeight : one.flat);
    base.size = Plus(base.size, one.size);
    base.all_branches = Plus(base.all_branches, one.all_branches - 1);
    base.all_values = Plus(base.all_values, one.all_values);
    base.places = Plus(base.places, one.places);
    base.recursive = base.recursive || one.recursive;
    base.counts_keys = base.counts_keys || one.counts_keys;
    base.inner_patterns = std::max({base.inner_patterns, one.patterns, one.inner_patterns});
    return one;
  };
  const auto add_key = [&](absl::string_view name) {
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
  const uint64_t listed_patterns = base.inner_patterns;
  for (const size_t part : node.rest) {
    const Extent& one = add(part);
    if (nodes_[part].schema->is_boolean()) continue;
    base.rest = Plus(base.rest, one.size);
    base.has_any_key = base.has_any_key || static_cast<int64_t>(part) != node.items;
    key_patterns = std::max({key_patterns, one.patterns, one.inner_patterns});
  }
  // A property must also obey the schema of a pattern that its name matches.
  if (node.has_key_patterns) {
    base.inner_patterns = std::max(base.inner_patterns, listed_patterns + key_patterns);
  }
  if (!node.schema->is_object()) return base;
  const Json& schema = *node.schema;
  for (const char* keyword : {"pattern", "format"}) base.patterns += schema.contains(keyword);
  for (const char* keyword : {"pattern", "format", "minLength", "maxLength", "minimum", "maximum",
                              "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}) {
    if (schema.contains(keyword)) base.values = 1;
  }
  base.all_values = Plus(base.all_values, base.values);
  const uint64_t extra = kPriceWeight * ExtraPrice(schema);
  base.flat = Plus(base.flat, extra);
  base.size = Plus(base.size, extra);
  const size_t required = RequiredCount(schema);
  base.places = Plus(base.places, required);
  base.size = Plus(base.size, required);
  base.flat = Plus(base.flat, required);
  base.counts_keys =
      base.counts_keys || schema.contains("minProperties") || schema.contains("maxProperties");
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
        values.values = values.all_values = values.branches;
        parts.push_back(values);
      } else if (key == "anyOf") {
        parts.push_back(BranchesOf(node.any_of));
      } else if (key == "oneOf") {
        parts.push_back(BranchesOf(node.one_of));
        CountComparisons(node);
      } else if (key == "allOf") {
        for (const size_t one : node.all_of) parts.push_back(ExtentOf(one));
      } else if (key != "$schema" && key != "$defs" && key != "definitions") {
        has_base = true;
      }
    }
    if (has_base || parts.empty()) {
      Extent base = BaseOf(node);
      // If only a type stands next to the other keywords, it costs less than a schema.
      if (base.is_flat() && !parts.empty()) {
        base.flat -= kSchemaWeight - 1;
        base.size -= kSchemaWeight - 1;
      }
      parts.push_back(std::move(base));
    }
  }
  Extent whole = parts.empty() ? Extent() : parts[0];
  uint64_t cost = 0;
  for (size_t i = 1; i < parts.size(); ++i) {
    whole = Intersect(whole, parts[i]);
    cost = Plus(cost, whole.flat);
  }
  NoteCost(node, cost);
  const uint64_t patterns = std::max(whole.patterns, whole.inner_patterns);
  if (patterns > SchemaLimits::kStringPatterns && many_patterns_ == nullptr) {
    many_patterns_ = &node;
  }
  most_patterns_ = std::max(most_patterns_, patterns);
  extents_[index] = std::move(whole);
  progress_[index] = Progress::kDone;
  return extents_[index];
}

void SchemaGraph::NoteCost(const Node& node, uint64_t cost) {
  intersected_ = Plus(intersected_, cost);
  if (cost <= worst_cost_) return;
  worst_cost_ = cost;
  worst_ = &node;
}

absl::Status SchemaGraph::CheckIntersections() {
  progress_.assign(nodes_.size(), Progress::kNew);
  extents_.assign(nodes_.size(), {});
  // Count the objects for which the library writes a list for each choice (kChoicesPerValue).
  for (const Node& node : nodes_) {
    if (!node.schema->is_object() || !IsClosed(*node.schema)) continue;
    const size_t listed = node.properties.size(), required = RequiredCount(*node.schema);
    uint64_t length = 0;  // length of the list that the library writes for one choice
    if (CountOf(*node.schema, "maxProperties") == required + 1) length = required + 1;
    if (CountOf(*node.schema, "minProperties") == required + 1) length = listed;
    NoteCost(node, Times(listed, Times(length, length)) / kChoicesPerValue);
  }
  ExtentOf(0);
  if (many_patterns_ != nullptr) {
    return RefuseSchema(many_patterns_->place,
                        absl::StrCat("one string must obey at most ", SchemaLimits::kStringPatterns,
                                     " patterns and formats together; got ", most_patterns_));
  }
  if (intersected_ <= SchemaLimits::kIntersected) return absl::OkStatus();
  return RefuseSchema(
      worst_->place,
      absl::StrCat("allOf, and anyOf, oneOf, enum or $ref beside other keywords: the combinations "
                   "of their alternatives, 25 per schema and 1 per JSON value, must sum up to at "
                   "most ",
                   SchemaLimits::kIntersected));
}

uint64_t SchemaGraph::cost() const {
  // Strings with several patterns may need the library's whole fuel.
  const uint64_t patterns = most_patterns_ > 1 ? 25'000 : 0;
  return Plus(Plus(intersected_, Times(kPriceWeight, compiled_)), patterns);
}

// --- text that an answer must contain ---

uint64_t StringMinimum(const Json& schema) {
  uint64_t length = schema.value("minLength", uint64_t{0});
  if (const auto pattern = schema.find("pattern"); pattern != schema.end()) {
    length = std::max(length, ShortestMatch(pattern->get_ref<const std::string&>()));
  }
  return 2 + length;
}

SchemaGraph::OwnText SchemaGraph::OwnTextOf(const Node& node) const {
  OwnText own;
  if (!node.schema->is_object()) {
    own.other = 1;
    return own;
  }
  const Json& schema = *node.schema;
  const auto type = schema.find("type");
  const auto may_be = [&](const char* name) {
    if (type == schema.end() || *type == name) return true;
    return type->is_array() && std::find(type->begin(), type->end(), name) != type->end();
  };
  if (may_be("string")) own.string = StringMinimum(schema);
  if (may_be("number") || may_be("integer") || may_be("null") || may_be("boolean")) own.other = 1;
  own.may_be_array = may_be("array");
  own.may_be_object = may_be("object");
  own.items = schema.value("minItems", uint64_t{0});
  own.properties = schema.value("minProperties", uint64_t{0});
  if (const auto required = schema.find("required"); required != schema.end()) {
    const absl::flat_hash_map<absl::string_view, size_t> listed(node.properties.begin(),
                                                                node.properties.end());
    for (const Json& one : *required) {
      const std::string& name = one.get_ref<const std::string&>();
      const auto found = listed.find(name);
      own.required = Plus(own.required, name.size() + 6);
      own.required_nodes.push_back(found == listed.end() ? -1
                                                         : static_cast<int64_t>(found->second));
    }
  }
  if (const auto value = schema.find("const"); value != schema.end()) {
    own.literal = value->dump().size();
  }
  if (const auto values = schema.find("enum"); values != schema.end() && !values->empty()) {
    uint64_t least = kEndless;
    for (const Json& one : *values) least = std::min<uint64_t>(least, one.dump().size());
    own.literal = std::max(own.literal, least);
  }
  return own;
}

uint64_t SchemaGraph::ArrayMinimum(const Node& node, const OwnText& own) const {
  const uint64_t count = own.items;
  uint64_t bytes = 2 + (count == 0 ? 0 : 2 * (count - 1));
  const uint64_t first = std::min<uint64_t>(count, node.prefix_items.size());
  for (size_t i = 0; i < first; ++i) bytes = Plus(bytes, minimum_[node.prefix_items[i]]);
  if (count == first) return bytes;
  const uint64_t item = node.items < 0 ? 1 : minimum_[static_cast<size_t>(node.items)];
  return item == kEndless ? kEndless : Plus(bytes, Times(count - first, item));
}

uint64_t SchemaGraph::ObjectMinimum(const OwnText& own) const {
  uint64_t bytes = own.required;
  const uint64_t count = own.required_nodes.size();
  for (const int64_t node : own.required_nodes) {
    bytes = Plus(bytes, node < 0 ? 1 : minimum_[static_cast<size_t>(node)]);
  }
  // Each further property has a key, a value and what separates them.
  if (own.properties > count) bytes = Plus(bytes, Times(own.properties - count, 7));
  return Plus(bytes, count == 0 && own.properties == 0 ? 2 : 0);
}

// Returns the bytes of the shortest text that obeys a schema. REQUIRES: minimum_ is right for all
// other schemas.
// Sets greatest_ to the length of the longest text that a choice of type or value can force.
uint64_t SchemaGraph::MinimumOf(size_t index) {
  const Node& node = nodes_[index];
  const OwnText& own = own_[index];
  uint64_t& greatest = greatest_[index];
  greatest = 0;
  uint64_t bytes = kEndless;
  const auto allow = [&](uint64_t one) {
    bytes = std::min(bytes, one);
    if (one != kEndless) greatest = std::max(greatest, one);
  };
  allow(own.string);
  allow(own.other);
  if (own.may_be_array) allow(ArrayMinimum(node, own));
  if (own.may_be_object) allow(ObjectMinimum(own));
  const auto restrict = [&](uint64_t least) {
    bytes = std::max(bytes, least);
    if (least != kEndless) greatest = std::max(greatest, least);
  };
  for (const auto* list : {&node.any_of, &node.one_of}) {
    uint64_t least = list->empty() ? 0 : kEndless;
    for (const size_t one : *list) least = std::min(least, minimum_[one]);
    restrict(least);
  }
  for (const size_t one : node.all_of) restrict(minimum_[one]);
  if (node.reference >= 0) restrict(minimum_[static_cast<size_t>(node.reference)]);
  restrict(own.literal);
  return bytes;
}

absl::Status SchemaGraph::CheckForcedText() {
  // The shortest texts begin as endless. A group needs the groups before it, and repeats until no
  // text becomes shorter: a change takes at most a round for each target of the group, and
  // CheckNesting limits these targets. Parts have higher indices than the schema that contains
  // them.
  constexpr uint64_t kRounds = SchemaLimits::kNesting;
  minimum_.assign(nodes_.size(), kEndless);
  greatest_.assign(nodes_.size(), 0);
  for (const Node& node : nodes_) own_.push_back(OwnTextOf(node));
  for (const Group& group : groups_) {
    bool changed = true;
    for (uint64_t round = 0; round < kRounds && changed; ++round) {
      changed = false;
      for (const size_t target : group.targets) {
        const std::vector<size_t>& nodes = targets_[target].nodes;
        for (size_t i = nodes.size(); i-- > 0;) {
          const uint64_t bytes = MinimumOf(nodes[i]);
          changed = changed || bytes != minimum_[nodes[i]];
          minimum_[nodes[i]] = bytes;
        }
      }
      if (group.targets.size() == 1 && targets_[group.targets[0]].next.empty()) break;
    }
  }
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (greatest_[i] <= SchemaLimits::kForcedBytes) continue;
    return RefuseSchema(nodes_[i].place,
                        absl::StrCat("the bytes of the shortest text must be at most ",
                                     SchemaLimits::kForcedBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> CheckSchemaCost(Json* schema) {
  SchemaGraph graph(schema);
  absl::Status status = graph.Resolve();
  if (status.ok()) status = graph.CheckNesting();
  if (status.ok()) status = graph.CheckCompiled();
  if (status.ok()) status = graph.CheckObjects();
  if (status.ok()) status = graph.CheckIntersections();
  if (status.ok()) status = graph.CheckForcedText();
  if (!status.ok()) return status;
  return graph.cost();
}

}  // namespace hearth
