package rule

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a rule set, with which
// editors complete and check what operators write. It says what a document looks
// like; whether it is good, such as that ids are unique and that names are
// declared, [Parse] says.
func Schema() []byte { return append([]byte(nil), schema...) }
