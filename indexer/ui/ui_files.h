// The files of the page, as they were when this process was built: no path is looked for at run
// time.
//
// *Place*: the folder `page`, by a rule of the build (`embed_page.py`). *Lifetime*: as long as the
// process.

#ifndef KVATLAS_INDEXER_UI_UI_FILES_H_
#define KVATLAS_INDEXER_UI_UI_FILES_H_

#include <span>
#include <string_view>

namespace kvatlas {

struct UiFile {
  std::string_view path;  // "app.js", "vendor/uplot/LICENSE"
  std::string_view body;
};

// By path. In index.html "{{version}}" stands for `UiVersion`.
std::span<const UiFile> UiFiles();

// A hash of the contents of all files, 16 hexadecimal digits: files below a folder of this name
// never change.
std::string_view UiVersion();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_UI_FILES_H_
