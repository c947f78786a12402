"""Names and figures that any kind of report may use."""

from __future__ import annotations

_TOWNS = """
Harwick Marling Osterby Fenmore Tolbridge Kestrow Wexham Dunmere Aldersea Brockton Lindow Stavely
Torrin Ullswick Varnmouth Whitcombe Yarrow Elmstead Garrick Hollins Kilburn Langside Mossley Norholm
Oakridge Pelham Quarley Redmere Thornaby Upwell Vexford Westray Barrowby Carnforth Drayton Eastry
Foxhill Greyport Hexley Inverdale
"""

_SURNAMES = """
Keller Brandt Sorensen Novak Ortega Lindqvist Moreau Tanaka Okafor Petrov Haddad Silva Kowalski Jensen Murphy Rossi
Weber Dubois Nilsen Horvath Castro Fischer Larsen Moretti Walsh Bergman Chandra Duarte Eriksen Fontaine Garcia
Hughes Ivanov Kaplan Lambert Mendes Nakamura Olsen Pereira Quinn Ramsay Schmidt Torres Varga
"""

TOWNS = tuple(_TOWNS.split())
SURNAMES = tuple(_SURNAMES.split())
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("January", "March", "April", "May", "June", "September", "October", "November")
COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
