// Package rule decides who is gray: which tag a request gets at the entrance,
// by rules that operators change while everything runs.
//
//	store := rule.NewFileStore("rules.json")
//	engine, err := rule.NewEngine(nil)       // no rules yet: everything is stable
//	go engine.Follow(ctx, store)             // looks at the file once a second
//	d := engine.Decide(&rule.Request{Header: …})
//	ctx = graytag.NewContext(ctx, d.Tag)
//
// Services seldom call Decide themselves: the edges and the gateway of graylane
// do, and clients for the hops inside a system.
//
// # A rule set on one page
//
// A rule set is a JSON document. This one makes testers gray, then a tenth of
// the users of the app, and leaves all others stable:
//
//	{
//	  "attributes": {"uid": ["cookie:user_id", "header:X-User-ID", "query:uid"]},
//	  "rules": [
//	    {"id": "testers", "priority": 100,
//	     "match": [{"attr": "uid", "op": "suffix", "values": ["9999"]}],
//	     "tag": "version=v2.1.0"},
//	    {"id": "app-10pct",
//	     "match": [{"attr": "channel", "op": "in", "values": ["app"]}],
//	     "percent": 10, "salt": "app-2026-12",
//	     "tag": "version=v2.1.0"}
//	  ],
//	  "default": "version=stable"
//	}
//
// The fields of the set:
//
//	key         the key of the tag that routing reads; "version"
//	attributes  where the value of a name comes from
//	carry       names of attributes that are copied into every tag
//	rules       the rules, in any order
//	default     the tag where no rule without services matched; "", untagged
//	stop        true sends everyone to stable: no rule, no default, no carry
//	plans       belongs to package rollout, meta to whoever writes the set; what
//	            is in them is kept byte for byte and never looked at
//
// The fields of a rule; id and tag are required:
//
//	id        unique; holds no ':' and no space
//	name      for people
//	enabled   false switches the rule off
//	priority  the highest is tried first; 0
//	services  the target services that the tag is for; none, which is all
//	match     conditions, all of which must be true; none is always true
//	percent   share of the users that match lets through; none is all of them
//	hashBy    what identifies a user, the first that is there; ["uid"]
//	salt      what makes the choice of users; the id
//	from      the rule is in force from this time on (RFC 3339)
//	until     and before this time
//	tag       what a matching request gets, as in "version=v2;lane=checkout"
//
// # Order
//
// Rules are tried by priority, the highest first; among equals those without
// percent before those with, so that a whitelist wins over a percentage; then by
// id. Where a rule stands in the document does not matter.
//
// A rule without services is global: it gives its pairs to the tag and ends the
// evaluation. A rule with services gives version.inventory=v7 in place of
// version=v7 for each of its services and each of its pairs, and the evaluation
// goes on. A key that an earlier rule has set stays. Where no global rule
// matched, the default gives its pairs. "version=stable" pins a request to
// stable, also where rules of later hops would say otherwise.
//
// On a hop inside the system ([Request].Service is the target) a rule whose
// services do not hold the target does not match, one that has it gives its pairs
// for the target alone, and everything else is as at the entrance.
//
// # Attributes
//
// An attribute has sources that are tried in order: header:N (in any case),
// cookie:N, query:N, or a built-in name. An empty value counts as missing, and
// so does one over 8192 bytes. These are there without being declared; a set
// that names one of them replaces that one, and leaves the others:
//
//	uid      cookie:user_id, header:X-User-ID, query:uid
//	channel  header:X-Channel
//	region   header:X-Region
//	group    cookie:gray_group, which a gateway gives to visitors without a key
//	session  cookie:session_id
//
// Built in, and not to be declared, are ip (the client's address, unmapped,
// without zone and port, in canonical text), host (lower case, without port),
// path, method and source (the calling service, on a hop). A condition and hashBy
// may also name header:N, cookie:N or query:N directly; a header or cookie that
// is there and empty exists then. A name declared with no sources, [], is one
// that code gives: see [Request].Attr.
//
// # Conditions
//
// A condition names an attribute, an operator and values, of which any must fit;
// for not_equals and not_in none may. A missing attribute meets only not_exists.
//
//	equals, in            is one of the values (the two are the same)
//	not_equals, not_in    is there, and none of them
//	prefix, suffix        starts, ends with one of the values
//	contains              holds one of the values
//	regex                 RE2, the syntax of Go, unanchored; on values up to 1024 bytes
//	exists, not_exists    takes no values
//	mod                   ASCII digits of any length, modulo mod, are less than below:
//	                      {"attr": "uid", "op": "mod", "mod": 100, "below": 10}
//	cidr                  an address in a range, or equal to a single address
//	semver                a version in a range such as ">=3.2.0 <5", as
//	                      github.com/Masterminds/semver reads it: a pre-release is in a
//	                      range only where the range names one
//
// # Percentages
//
// A user is in a percentage where [Bucket] (salt, key) is less than percent*1000.
// That is a hash and no random number, so a user who is in stays in, on every
// gateway; a growing percentage adds users and moves none; percentages have up to
// three decimals and are exact. 0 is nobody and 100 is everybody, key or not. In
// between, a request without any key of hashBy does not match, and is counted
// ([Decision].NoKey).
//
// Different salts choose independently: of the users in one rule of 10 %, 10 %
// are in another. Services that must move together therefore share salt and
// hashBy. Give a rule a salt of its own once its percentage is above 0, and a
// later rename changes nobody's side.
//
// # Carry
//
// Carried attributes are copied into the tag after rules and default, whose pairs
// win. A value that fits no tag (over 256 bytes, control characters) is skipped.
// Where a tag would get over the limits of package graytag, the pairs of the
// lowest priority go, and are counted ([Decision].Truncated): carried ones first,
// the last first, then the default, then rules, each as a whole.
//
// # Changing rules
//
// [Engine.Follow] puts each new document of a [Store] in force: [MemoryStore],
// [FileStore], or Consul KV in package registry/consul. A decision is made wholly
// by one set. A document with a fault is refused whole, the last good one stays,
// and the faults, each with its path (rules[3].match[0].op), are in
// [Engine.Status] and once in the log. A store that is away changes nothing. A
// deleted document means no rules, that is, everything is stable.
//
// Writers use [Store].Put with the revision that they have read: whoever has
// changed the document in between wins, and the writer gets [ErrConflict].
// [Parse] before you Put, and show what [Lint] finds. [Marshal] writes a Set such
// that nothing of plans and meta changes; [Schema] lets an editor complete names.
// [Engine.Explain] answers why a request got what it got.
//
// [Engine.Suspend] switches rules off in one engine at once, for a rollback that is
// not to wait for the store. It outlasts documents from before that rollback.
//
// # What is seen
//
// While an engine follows a store it shows graylane.rules.revision and
// graylane.rules.age, by which gateways that have not followed stand out, and
// graylane.rules.failing, which is 1 while a document is refused (cause "refused")
// or the store cannot be read (cause "store"). See [WithMeterProvider].
//
// # Cost
//
// A set is compiled once. Deciding takes no lock and, for a tag that rules alone
// make, allocates nothing once a combination of rules has occurred. Rules with an
// equals, in, prefix, suffix or exists condition are found through an index, so
// that 10,000 of them cost about what 100 do; a list of 100,000 users is one
// look-up. Rules without such a condition are tried one by one, before their
// turn comes none of them costs anything: keep them below [UnindexedLimit].
//
// # Security
//
// Everything in a request is the client's word: who sets X-User-ID to a tester's
// id is a tester. Where that matters, replace the sources of the attribute by
// what was authenticated ([Request].Attr; the edges have an option for it). Never
// let rules read X-Gray-Tag. Do not carry the routing key. A client can choose
// its bucket by choosing its id; percentages spread load and risk, they keep
// nobody out. What decides is bounded: values by length, regular expressions by
// RE2 and by size, documents in bytes, depth and count ([MaxBytes] and the other
// limits). Explanations hold values of the request: show them to operators only.
package rule
