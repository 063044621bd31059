// Package tools pins what develops memplan and is not part of it, in a module
// of its own: gofumpt, and oapi-codegen with the runtime its clients import.
package tools

import _ "github.com/oapi-codegen/runtime" // of the client that a test generates and compiles
