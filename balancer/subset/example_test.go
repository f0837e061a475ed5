package subset_test

import (
	"fmt"

	"github.com/graylane/graylane/balancer/subset"
	"github.com/graylane/graylane/graytag"
)

func Example() {
	selector, err := subset.Policy{}.Compile("inventory")
	if err != nil {
		fmt.Println(err)
		return
	}
	table := selector.NewTable([]subset.Subset{
		{Version: "", Registered: 3, Ready: 3},
		{Version: "v2", Registered: 1, Ready: 1},
	})
	for _, tag := range []string{"", "version=v2", "version=v3"} {
		choice, _ := table.Choose(graytag.MustParse(tag))
		fmt.Printf("%q: %s, reason %q\n", tag, choice.Outcome, choice.Reason)
	}
	// Output:
	// "": stable, reason ""
	// "version=v2": matched, reason ""
	// "version=v3": fallback_stable, reason "missing"
}
