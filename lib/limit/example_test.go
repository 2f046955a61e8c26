package limit_test

import (
	"fmt"

	"tendril.dev/lib/limit"
)

// Of three places a client holds two at most, so that there is one for another.
func ExampleFair() {
	places := limit.NewFair(3, 2)
	release, err := places.Try("192.0.2.1", 2)
	fmt.Println("two for the first:", err)
	_, err = places.Try("192.0.2.1", 1)
	fmt.Println("one more:", err)
	_, err = places.Try("192.0.2.2", 1)
	fmt.Println("one for the second:", err)
	_, err = places.Try("192.0.2.2", 1)
	fmt.Println("one more:", err)
	release()
	_, err = places.Try("192.0.2.2", 1)
	fmt.Println("after a release:", err)
	// Output:
	// two for the first: <nil>
	// one more: the party holds its share already
	// one for the second: <nil>
	// one more: all places are taken
	// after a release: <nil>
}
