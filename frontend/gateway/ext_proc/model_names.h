// An engine answers under the name that its model has there; a client is to read the one that it
// asked for. Puts one in the place of the other, in a whole answer and in a stream of pieces.
//
// *Truth*: of each `"model"` of an object, at any depth, whose value is the engine's name; a text
// that holds such words has its quotes escaped, and is left alone.
// *Bounds*: what may become such a field is held back, until the next piece: some bytes more than
// the name.
// *Threads*: one at a time.
//
// Example:
//   ModelNames names("llama-70b-v2", "llama");
//   out = names.Add(piece, /*last=*/false);

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_MODEL_NAMES_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_MODEL_NAMES_H_

#include <string>
#include <string_view>

namespace kvatlas {

class ModelNames {
 public:
  ModelNames(const std::string& engines, const std::string& clients);

  // What goes on of the answer; all that is left, behind the last piece.
  std::string Add(std::string_view piece, bool last);

 private:
  const std::string engines_;  // as JSON
  const std::string clients_;
  std::string held_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_MODEL_NAMES_H_
