#include "worker/device/product_choice.h"

#include <cassert>

#include "worker/device/program_list.h"

namespace hearth {
namespace {

template <class Shape>
constexpr ShapeFacts FactsOfShape() {
  using Program = ProductProgram<Shape, false>;
  return {Shape::kRows, Shape::kColumns, sizeof(typename Program::Shared),
          !std::is_same_v<typename PairProduct<Shape>::Type, NoProgram>};
}

template <class... Shapes>
ShapeFacts FactsIn(TypeList<Shapes...>, int shape) {
  static constexpr ShapeFacts kFacts[] = {FactsOfShape<Shapes>()...};
  return kFacts[shape];
}

template <template <class, bool> class Program, class... Tilings>
ShapeFacts FactsOfTilings(TypeList<Tilings...>, int tiling) {
  static constexpr ShapeFacts kFacts[] = {{Tilings::kRows, Tilings::kColumns,
                                           sizeof(typename Program<Tilings, false>::Shared),
                                           true}...};
  return kFacts[tiling];
}

template <class... Tilings>
ShapeFacts IntegerFactsIn(TypeList<Tilings...>, int tiling) {
  static constexpr ShapeFacts kFacts[] = {
      {Tilings::kRows, Tilings::kColumns,
       sizeof(typename IntegerProductProgram<IntegerForm::kInt8Parts, Tilings>::Shared), true}...};
  return kFacts[tiling];
}

// One rule for the choice of a product's shape; the first matching rule in kRules decides.
struct Rule {
  int rows;    // matches products of at most this many rows; 0: any number of rows
  int blocks;  // matches at most this many thread blocks for each processor; 0: any number
  int shape;
};

template <class Tiling>
constexpr int NumberOf() {
  constexpr int kNumber = NumberIn<Tiling>(ProductTilings());
  static_assert(kNumber >= 0, "not in ProductTilings");
  return kNumber;
}

// Measured on an H100 for the matrix products of Gemma 3 270M, 1B and 4B (docs/benchmarks.md). If
// there are few thread blocks, each block should have few columns, so that all processors work. A
// block of many columns reads the rows less often.
constexpr Rule kRules[] = {
    {1, 1, NumberOf<ProductTiling<1, 1, 1, 1, 1, 256, 4, 1>>()},
    {1, 0, NumberOf<ProductTiling<1, 1, 2, 1, 1, 128, 4>>()},
    {8, 5, NumberOf<ProductTiling<2, 1, 1, 1, 1, 256, 4>>()},
    {8, 4, NumberOf<ProductTiling<4, 1, 2, 1, 1, 128, 8>>()},
    {8, 4, NumberOf<ProductTiling<1, 4, 2, 1, 1, 64, 6>>()},
    {8, 0, NumberOf<ProductTiling<4, 2, 4, 1, 2, 64, 4>>()},
    {32, 3, NumberOf<ProductTiling<2, 1, 2, 4, 1, 128, 4, 1>>()},
    {32, 3, NumberOf<ProductTiling<4, 2, 4, 1, 2, 64, 4>>()},
    {16, 0, NumberOf<ProductTiling<4, 4, 4, 1, 2, 64, 4>>()},
    {32, 8, NumberOf<ProductTiling<4, 4, 4, 1, 2, 64, 4>>()},
    {32, 0, NumberOf<ProductTiling<4, 8, 8, 1, 4, 32, 4>>()},
    {0, 3, NumberOf<ProductTiling<8, 4, 2, 1, 1, 64, 6>>()},
    {0, 12, NumberOf<ProductTiling<4, 4, 4, 2, 1, 64, 4>>()},
    {0, 0, NumberOf<ProductTiling<4, 8, 8, 2, 2, 64, 3>>()},
};

}  // namespace

ShapeFacts FactsOf(ProductKind kind, int tiling) {
  if (kind == ProductKind::kFloat) return FactsIn(ProductTilings(), tiling);
  if (kind == ProductKind::kBf16) {
    return FactsOfTilings<Bf16ProductProgram>(Bf16Tilings(), tiling);
  }
  if (kind == ProductKind::kInteger) return IntegerFactsIn(IntegerTilings(), tiling);
  return FactsOfTilings<WarpgroupProductProgram>(WarpgroupTilings(), tiling);
}

int ChooseBf16Product(int rows) {
  int tiling = 0;
  while (tiling + 1 < Bf16Tilings::kCount && Bf16FactsOf(tiling).rows < rows) ++tiling;
  return tiling;
}

// The last tiling has the largest thread blocks; with few of them, some processors would be idle.
int ChooseIntegerProduct(int rows, int columns, int processors) {
  constexpr int kLast = IntegerTilings::kCount - 1;
  int tiling = 0;
  while (tiling < kLast && IntegerFactsOf(tiling).rows < rows) ++tiling;
  if (tiling < kLast || BlocksOf(IntegerFactsOf(kLast), rows, columns) >= processors) return tiling;
  return kLast - 1;
}

int BlocksOf(const ShapeFacts& facts, int rows, int columns) {
  return (rows + facts.rows - 1) / facts.rows * ((columns + facts.columns - 1) / facts.columns);
}

int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors,
                  size_t shared_bytes) {
  int fitting = -1;
  for (const Rule& rule : kRules) {
    const ShapeFacts facts = FactsOf(rule.shape);
    if (facts.shared_bytes > shared_bytes || (is_pair && !facts.takes_pairs)) continue;
    if (fitting < 0) fitting = rule.shape;
    if (rule.rows > 0 && rows > rule.rows) continue;
    fitting = rule.shape;
    const int blocks = BlocksOf(facts, rows, matrix.columns);
    if (rule.blocks == 0 || blocks <= rule.blocks * processors) return rule.shape;
  }
  assert(fitting >= 0);
  return fitting;
}

int ChooseTiling(ProductKind kind, int rows, const DeviceMatrix& matrix, bool is_pair,
                 int processors, size_t shared_bytes) {
  if (kind == ProductKind::kFloat) {
    return ChooseProduct(rows, matrix, is_pair, processors, shared_bytes);
  }
  if (kind == ProductKind::kBf16) return ChooseBf16Product(rows);
  if (kind == ProductKind::kInteger) return ChooseIntegerProduct(rows, matrix.columns, processors);
  int tiling = TilingCount(kind) - 1;  // the largest that has a thread block for each processor
  while (tiling > 0 && BlocksOf(FactsOf(kind, tiling), rows, matrix.columns) < processors) --tiling;
  return tiling;
}

}  // namespace hearth
