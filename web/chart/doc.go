// Package chart draws the planner's two pictures as SVG text: the memory at
// the peak as one stacked bar, and the course of a step as stacked areas. It is
// geometry only: it knows neither pages nor colours. Lengths along the page are
// percentages, so that a drawing fills whatever width it is given while its
// lettering keeps its size; colours and patterns are classes that the page's
// style sheet fills in, and every drawing carries its own title and description
// for those who do not see it.
package chart
