#include "indexer/service/security/tokens.h"
