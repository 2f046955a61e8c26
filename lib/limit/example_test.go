package limit_test

import (
	"fmt"

	"tendril.dev/lib/limit"
)

// Two processes run at once, and one party has one of them at most.
func ExampleFair() {
	processes := limit.NewFair(2, 1)
	release, err := processes.Try("stranger", 1)
	fmt.Println("stranger:", err)
	_, err = processes.Try("stranger", 1)
	fmt.Println("stranger again:", err)
	_, err = processes.Try("owner", 1)
	fmt.Println("owner:", err)
	_, err = processes.Try("another", 1)
	fmt.Println("another:", err)
	release()
	_, err = processes.Try("another", 1)
	fmt.Println("another, later:", err)
	// Output:
	// stranger: <nil>
	// stranger again: the party holds its share already
	// owner: <nil>
	// another: all places are taken
	// another, later: <nil>
}
