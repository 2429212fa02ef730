#include "worker/device/product_choice.h"

#include <cassert>

#include "worker/device/program_list.h"

namespace hearth {
namespace {

template <class Shape>
constexpr ShapeFacts FactsOfShape() {
  using Program = ProductProgram<Shape, false>;
  return {Shape::kRows, Shape::kColumns, Program::kWarps, sizeof(typename Program::Shared),
          !std::is_same_v<typename PairProduct<Shape>::Type, NoProgram>};
}

template <class... Shapes>
ShapeFacts FactsIn(TypeList<Shapes...>, int shape) {
  static constexpr ShapeFacts kFacts[] = {FactsOfShape<Shapes>()...};
  return kFacts[shape];
}

}  // namespace

int ShapeCount() { return ProductTilings::kCount; }
ShapeFacts FactsOf(int shape) { return FactsIn(ProductTilings(), shape); }

// The fewest rows that hold all, up to 64; then the most columns that leave a warp for each
// processor.
int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors) {
  int best = -1;
  for (int shape = 0; shape < ShapeCount(); ++shape) {
    const ShapeFacts facts = FactsOf(shape);
    if (is_pair && !facts.takes_pairs) continue;
    if (best < 0) {
      best = shape;
      continue;
    }
    const ShapeFacts other = FactsOf(best);
    const bool holds = facts.rows >= rows || facts.rows >= 64;
    const bool other_holds = other.rows >= rows || other.rows >= 64;
    const auto warps = [&](const ShapeFacts& of) {
      return (matrix.columns + of.columns - 1) / of.columns * of.warps *
             ((rows + of.rows - 1) / of.rows);
    };
    const bool fills = warps(facts) >= processors, other_fills = warps(other) >= processors;
    bool is_better = false;
    if (holds != other_holds) {
      is_better = holds;
    } else if (!holds) {
      is_better = facts.rows > other.rows;
    } else if (facts.rows != other.rows) {
      is_better = facts.rows < other.rows;
    } else if (fills != other_fills) {
      is_better = fills;
    } else {
      is_better = fills ? facts.columns > other.columns : facts.columns < other.columns;
    }
    if (is_better) best = shape;
  }
  assert(best >= 0);
  return best;
}

}  // namespace hearth
