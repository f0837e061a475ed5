// Package grayslog adds the tag of a request to every log line that is written
// with the request's context:
//
//	h := grayslog.NewHandler(slog.NewJSONHandler(os.Stderr, nil), grayslog.WithService("order"))
//	slog.SetDefault(slog.New(h))
//	…
//	slog.ErrorContext(r.Context(), "payment failed", "err", err)
//	// {…,"msg":"payment failed","err":"…","gray.version":"v2.1.0"}
//
// Lines need the context: the methods whose names end in Context, Log and LogAttrs
// have it; Info, Error and their like have none, and their lines no version.
//
// # What a line says
//
// gray.version is the version that the request wants of this service, as the
// metrics show it under "wanted":
//
//	gray.version=v2.1.0   the request wants that version
//	gray.version=stable   a request that is untagged, or asks for stable by name
//	no gray.version       no request: a background job, a line without its
//	                      context, or a call chain that lost it
//
// It is not the version of the instance that writes the line, which may have got
// the request as a fallback. That one is the same on every line of a process, so
// that it costs nothing to have it there:
//
//	logger := slog.New(h).With("service.version", self.Metadata[registry.MetadataVersion])
//
// [WithTag] adds the whole tag as the group gray.tag. Where logs are indexed by
// field, have that group indexed as one (Elasticsearch: type flattened): whoever
// makes tags chooses its keys, and version beside version.order is a string beside
// an object to an index that takes dots for paths.
//
// # Where a line says it
//
// At the top level, wherever the logger comes from: slog.Logger.WithGroup puts the
// attributes of a library into a group of their own, and gray.version stays in the
// one place that a search looks at.
//
// An attribute gray.version or gray.tag that the program sets itself at the top
// level stands, and none is added. That holds also for a handler of this package
// around another one, with whatever in between.
//
// # Guarantees and limits
//
//   - The wrapped handler sees what it would see without this package, and one or
//     two more attributes. Enabled is its own.
//   - Nothing is added, and nothing allocated, where the context belongs to no
//     request and holds no baggage. Where it belongs to one, the version costs one
//     allocation on a line with five or more attributes and none on others.
//   - A logger with an open group is made again for each version, when the first
//     line of that version is written; the last eight are kept. With [WithTag] it is
//     made again for every line.
//   - Attributes that are given to a logger with an open group are therefore kept:
//     values behind pointers, maps and slices must not change any more. A LogValuer
//     among them is resolved once, when it is given.
//   - A whole tag adds less than 2 KiB to a line of a slog.TextHandler or slog.JSONHandler.
//   - In a service that has only OTel middleware the tag is read from the baggage,
//     anew for each line.
//
// # Security
//
// Versions and tags come from outside this process. They are bounded in size and
// hold no control characters (package graytag); the handlers of log/slog quote what
// is left. A handler that writes values as they are must do so, too.
//
// A tag names a user. In place of its uid stands a short hash, so that the lines of
// one user can be found and the user cannot be read off. Whoever can try all uids,
// which is soon done where they are numbers, finds out whose hash it is;
// [WithUIDKey] takes that away from those who do not have the key. Other pairs, those
// that rules carry into the tag among them, are written as they are.
//
// # See also
//
// Package [github.com/graylane/graylane/middleware] says what spans and metrics show
// beside log lines, and what to look at when something is wrong.
package grayslog
