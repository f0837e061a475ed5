package rollout

import _ "embed"

//go:embed schema.json
var schema []byte

// Schema returns the JSON Schema (draft 2020-12) of a rule set with plans, the file
// schema.json of this package: that of [rule.Schema], which leaves plans open, and
// what [Parse] knows of them. With it editors complete and check what operators write;
// whether a plan fits its rules, and whether its percentages grow, Parse says.
func Schema() []byte { return append([]byte(nil), schema...) }
