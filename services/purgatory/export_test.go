package purgatory

// For the tests of the service from outside.
type Constants = constants

var RunBy = runBy
