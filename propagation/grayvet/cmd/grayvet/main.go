// The grayvet command reports where a program loses the gray tag of a request.
//
//	go vet -vettool=$(which grayvet) ./...
//
// checks the packages named, with the cache of go vet; grayvet ./... does so by
// itself. See package [github.com/graylane/graylane/propagation/grayvet].
package main

import (
	"golang.org/x/tools/go/analysis/singlechecker"

	"github.com/graylane/graylane/propagation/grayvet"
)

func main() { singlechecker.Main(grayvet.Analyzer) }
